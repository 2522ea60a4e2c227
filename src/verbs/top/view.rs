//! What the user of `top` sees and does: the state that keys change. Reads and writes nothing.

use super::prompt::{Prompt, Question, SIGNALS};
use super::reader::Ask;
use super::round::{Name, Round, Wanted, Who};
use super::rows::{Choice, Item, Rows};
use crate::figures::processes::Process;
use crate::figures::{Row, Word};
use crate::shown::table::figure;
use gpulimit_base::units::Extent;
use gpulimit_group::is_within;
use gpulimit_limits::{Key, Selector};
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::{Position, Rect};
use std::time::Duration;

/// The intervals that the keys + and - choose, in milliseconds.
const INTERVALS: [u64; 8] = [200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// The times that curves can show, from now back, in seconds.
const SPANS: [u64; 4] = [600, 7_200, 86_400, 604_800];

/// What fills the screen.
#[derive(Clone, Debug, Default)]
pub enum Page {
    /// GPUs, groups and processes.
    #[default]
    Tables,
    /// The explanation of the keys.
    Help,
    /// The users, with the sums of their memory.
    Users,
    /// The curves of a group.
    Details(Wanted),
}

/// What a key asks the program to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Act {
    Quit,
    /// Stop the program, as Ctrl-Z does in a shell.
    Stop,
    /// Draw the whole screen anew.
    Redraw,
    /// Ask the thread that reads for something.
    Ask(Ask),
    /// Set the `max` of a group, for one GPU or for all.
    Limit(Name, String, Option<String>),
    /// Send a signal to a process, or to all processes of a group.
    Signal(Name, Option<Who>, i32),
    /// Run `gpulimit suspend` or `gpulimit resume` on a process, or on all processes of a group.
    Move(Name, Option<Who>, Word),
}

/// Where the tables were drawn, for the next key and the next frame.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// The first shown rows of the tables.
    pub offsets: [usize; 2],
    /// The areas of the tables, with their heads.
    pub tables: [Rect; 2],
    /// The number of rows of a page.
    pub page: usize,
    /// The first shown line of a page of text.
    pub scroll: usize,
}

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub choice: Choice,
    pub page: Page,
    /// The line or the list that waits for an answer.
    pub question: Option<Prompt>,
    pub selected: Option<Item>,
    /// The selected row when its item was last there.
    pub at: usize,
    /// The first shown rows of the tables, and of a page.
    pub offsets: [usize; 2],
    pub scroll: usize,
    pub paused: bool,
    pub interval: Duration,
    pub readonly: bool,
    /// What the last action did, until the next key.
    pub message: String,
}

impl View {
    /// Returns the place of the selected row; `None` if there are no rows or none is selected. If
    /// the selected item is gone, the row in its place is selected.
    pub fn position(&self, rows: &Rows<'_>) -> Option<usize> {
        let last = rows.len().checked_sub(1)?;
        let selected = self.selected.as_ref()?;
        Some(rows.position(selected).unwrap_or(self.at.min(last)))
    }

    /// Changes the state for a key. `page` is the number of rows of a page.
    pub fn key(&mut self, key: KeyEvent, round: &Round, page: usize) -> Option<Act> {
        self.message.clear();
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Some(Act::Quit),
            KeyCode::Char('z') if is_control => return Some(Act::Stop),
            KeyCode::Char('l') if is_control => return Some(Act::Redraw),
            KeyCode::Char(_) if is_control => return None,
            _ => {}
        }
        match (&self.page, key.code) {
            _ if self.question.is_some() => self.answer(key.code),
            (_, KeyCode::Char('p' | 'Z')) => {
                self.paused = !self.paused;
                Some(Act::Ask(Ask::Pause(self.paused)))
            }
            (Page::Tables, key) => self.key_of_tables(key, round, page),
            (Page::Help | Page::Users | Page::Details(_), key) => self.key_of_page(key, page),
        }
    }

    fn key_of_page(&mut self, key: KeyCode, page: usize) -> Option<Act> {
        match key {
            KeyCode::Down | KeyCode::Char('j' | 'J') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k' | 'K') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll += page,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('[' | ']') => return self.other_span(key == KeyCode::Char(']')),
            KeyCode::Char('q') if matches!(self.page, Page::Details(_)) => return Some(Act::Quit),
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => return self.leave(),
            KeyCode::Char('q' | '?' | 'h' | 'U') | KeyCode::F(1) => return self.leave(),
            _ => {}
        }
        None
    }

    /// Goes back to the tables.
    fn leave(&mut self) -> Option<Act> {
        let page = std::mem::take(&mut self.page);
        matches!(page, Page::Details(_)).then_some(Act::Ask(Ask::Curves(None)))
    }

    fn other_span(&mut self, longer: bool) -> Option<Act> {
        let Page::Details(wanted) = &mut self.page else {
            return None;
        };
        let now = wanted.since.as_secs();
        let at = SPANS.iter().position(|span| *span == now).unwrap_or(0);
        let next = if longer { at + 1 } else { at.saturating_sub(1) };
        wanted.since = Duration::from_secs(*SPANS.get(next)?);
        Some(Act::Ask(Ask::Curves(Some(wanted.clone()))))
    }

    fn key_of_tables(&mut self, key: KeyCode, round: &Round, page: usize) -> Option<Act> {
        let choice = &mut self.choice;
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return Some(Act::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                (self.page, self.scroll) = (Page::Help, 0);
            }
            KeyCode::Char('U') => (self.page, self.scroll) = (Page::Users, 0),
            KeyCode::Char('r') | KeyCode::F(5) => return Some(Act::Ask(Ask::Now)),
            KeyCode::Char('+' | '=') => return Some(self.other_interval(true)),
            KeyCode::Char('-') => return Some(self.other_interval(false)),
            KeyCode::Char('.' | '>') | KeyCode::F(6) => choice.sort = choice.sort.other(true),
            KeyCode::Char(',' | '<') => choice.sort = choice.sort.other(false),
            KeyCode::Char('I') => choice.inverted = !choice.inverted,
            KeyCode::Char('i') => choice.idle = !choice.idle,
            KeyCode::Char('/') | KeyCode::F(4) => {
                let filter = choice.filter.clone();
                return self.ask(Question::Filter, String::new(), &filter);
            }
            KeyCode::Char('u') => {
                let user = choice.user.clone();
                return self.ask(Question::User, String::new(), &user);
            }
            KeyCode::Char('d') => self.other_gpu(round),
            KeyCode::Char('T') => {
                choice.fold_all = !choice.fold_all;
                choice.folded.clear();
            }
            KeyCode::Char('t' | ' ') => self.fold(round),
            KeyCode::Enter => return self.details(round),
            KeyCode::Char('s') if !self.readonly => return self.ask_limit(round),
            KeyCode::Char('K') | KeyCode::F(9) if !self.readonly => return self.ask_signal(round),
            KeyCode::Char('S') if !self.readonly => return self.ask_move(round),
            KeyCode::Char('s' | 'K' | 'S') | KeyCode::F(9) => {
                self.message =
                    "--readonly: limits and processes cannot be changed; nor with --machines"
                        .into();
            }
            KeyCode::Esc if self.selected.take().is_none() => {
                choice.filter.clear();
                choice.user.clear();
                choice.gpus.clear();
            }
            key => self.move_selection(key, round, page),
        }
        None
    }

    /// Changes the state for a click or a turn of the wheel. A click on the selected row opens it.
    pub fn mouse(&mut self, mouse: MouseEvent, round: &Round, seen: &Seen) -> Option<Act> {
        const LINES: usize = 3;
        if self.question.is_some() {
            return None;
        }
        let (key, times) = match mouse.kind {
            MouseEventKind::ScrollDown => (KeyCode::Down, LINES),
            MouseEventKind::ScrollUp => (KeyCode::Up, LINES),
            MouseEventKind::Down(MouseButton::Left) if matches!(self.page, Page::Tables) => {
                let rows = Rows::of(round, &self.choice);
                let place = Position::new(mouse.column, mouse.row);
                let of = seen.tables.iter().position(|area| area.contains(place))?;
                let line = usize::from(mouse.row - seen.tables[of].y).checked_sub(1)?;
                let tables = [(0, rows.groups.len()), (rows.groups.len(), rows.len())];
                let (first, end) = tables[of];
                let at = first + seen.offsets[of] + line;
                let item = rows.item(at).filter(|_| at < end)?;
                if self.selected.as_ref() == Some(&item) {
                    return self.details(round);
                }
                (self.at, self.selected) = (at, Some(item));
                return None;
            }
            _ => return None,
        };
        for _ in 0..times {
            self.key(key.into(), round, 1);
        }
        None
    }

    fn move_selection(&mut self, key: KeyCode, round: &Round, page: usize) {
        let rows = Rows::of(round, &self.choice);
        let Some(last) = rows.len().checked_sub(1) else {
            return;
        };
        let now = self.position(&rows);
        let groups = rows.groups.len();
        let next = match key {
            KeyCode::Down | KeyCode::Char('j' | 'J') => now.map_or(0, |now| now + 1),
            KeyCode::Up | KeyCode::Char('k') => now.map_or(last, |now| now.saturating_sub(1)),
            KeyCode::PageDown => now.map_or(page - 1, |now| now + page),
            KeyCode::PageUp => now.unwrap_or(0).saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            // To the first row of the other table.
            KeyCode::Tab | KeyCode::BackTab if now.is_some_and(|now| now >= groups) => 0,
            KeyCode::Tab | KeyCode::BackTab => groups,
            _ => return,
        };
        self.at = next.min(last);
        self.selected = rows.item(self.at);
    }

    /// Returns the selected item. Without a selection, tells the user to select a row.
    fn chosen(&mut self, round: &Round) -> Option<Item> {
        let rows = Rows::of(round, &self.choice);
        let Some(at) = self.position(&rows) else {
            self.message = "select a row first, with the arrow keys".into();
            return None;
        };
        rows.item(at)
    }

    fn fold(&mut self, round: &Round) {
        if let Some(Item { group, .. }) = self.chosen(round)
            && !self.choice.folded.remove(&group)
        {
            self.choice.folded.insert(group);
        }
    }

    fn details(&mut self, round: &Round) -> Option<Act> {
        let group = self.chosen(round)?.group;
        let since = Duration::from_secs(SPANS[0]);
        let wanted = Wanted { group, since };
        (self.page, self.scroll) = (Page::Details(wanted.clone()), 0);
        Some(Act::Ask(Ask::Curves(Some(wanted))))
    }

    fn other_interval(&mut self, longer: bool) -> Act {
        let mut all = INTERVALS.map(Duration::from_millis).into_iter();
        let next = match longer {
            true => all.find(|next| *next > self.interval),
            false => all.rfind(|next| *next < self.interval),
        };
        self.interval = next.unwrap_or(self.interval);
        Act::Ask(Ask::Interval(self.interval))
    }

    /// Shows only the next GPU, and after the last one all GPUs.
    fn other_gpu(&mut self, round: &Round) {
        let mut ids = round.gpus.iter().map(|gpu| gpu.id);
        if let Some(now) = self.choice.gpus.last() {
            ids.find(|id| id == now);
        }
        self.choice.gpus = ids.next().into_iter().collect();
    }

    fn ask(&mut self, question: Question, about: String, text: &str) -> Option<Act> {
        let text = text.into();
        self.question = Some(Prompt {
            question,
            about,
            text,
            at: 0,
        });
        None
    }

    fn ask_limit(&mut self, round: &Round) -> Option<Act> {
        let item = self.chosen(round)?;
        let mut groups = round.groups.iter();
        let Some(group) = groups.find(|group| Name::of(group) == item.group) else {
            self.message = format!("group {} is not shown", item.group.name);
            return None;
        };
        // Only a limit for this GPU alone applies to a GPU that has one.
        let has_own = |row: &Row<'_>| {
            let own = |gpu| group.rules.get(Selector::Device(gpu), Key::Max);
            row.gpu.is_some_and(|gpu| own(gpu.id).is_some())
        };
        let is_it = |row: &Row<'_>| row.gpu.map(|gpu| gpu.id) == item.gpu;
        let own = group.rows().find(|row| is_it(row) && has_own(row));
        let shown = group.rows().find(is_it);
        let shown = shown.or_else(|| group.rows().find(|row| !has_own(row)));
        let scope = match &own {
            Some(row) => format!("GPU {}", round.label(row.gpu.map(|gpu| gpu.id))),
            None => format!("{} GPUs", Selector::All),
        };
        let (title, now) = (&group.title, figure(shown.map(|row| row.max())));
        let about = format!("{title}: max on {scope} is {now}. Esc changes nothing.");
        let gpu = own.and_then(|row| Some(row.gpu?.id.to_string()));
        self.ask(Question::Limit(item.group, gpu), about, "")
    }

    fn ask_signal(&mut self, round: &Round) -> Option<Act> {
        let (item, whom, command) = self.chosen_processes(round)?;
        let keys = "arrows choose, Enter sends, Esc does not.";
        let about = format!("Signal to {whom}: {keys}{command}");
        self.ask(Question::Signal(item.group, item.process), about, "")
    }

    /// Asks whether to resume what is selected, if some of it is suspended, or else to suspend it.
    fn ask_move(&mut self, round: &Round) -> Option<Act> {
        let (item, whom, command) = self.chosen_processes(round)?;
        let is_it = |it: &&Process| match item.process {
            Some(who) => Who::of(it) == who,
            None => it.root == item.group.root && is_within(&it.group, &item.group.name),
        };
        let mut its = round.processes.iter().filter(is_it);
        let moved = match its.any(|it| it.state == "suspended") {
            true => "resume",
            false => "suspend",
        };
        let about = format!("{moved} {whom}?{command}");
        self.ask(Question::Move(item.group, item.process, moved), about, "")
    }

    /// Returns the selected process, or the group of the selected row, and who they are as text.
    fn chosen_processes(&mut self, round: &Round) -> Option<(Item, String, String)> {
        let item = self.chosen(round)?;
        let (mut whom, mut command) = ("all processes".into(), String::new());
        if let Some(who) = item.process {
            let Some(pid) = who.pid else {
                let pid = who.own_pid;
                self.message = format!("process {pid} is in another pid namespace");
                return None;
            };
            let mut processes = round.processes.iter();
            let is_it = |it: &&Process| Who::of(it) == who && Name::of_process(it) == item.group;
            if let Some(process) = processes.find(is_it) {
                command = format!(" Command: {}", figure(process.command.as_deref()));
            }
            whom = format!("process {pid}");
        }
        let whom = format!("{whom} of {}", item.group.name);
        Some((item, whom, command))
    }

    /// Passes a key to the question. An answer ends the question.
    fn answer(&mut self, key: KeyCode) -> Option<Act> {
        let prompt = self.question.as_mut()?;
        match key {
            KeyCode::Enter => return self.accept(),
            KeyCode::Esc => {
                if let Question::Filter = prompt.question {
                    self.choice.filter.clear();
                }
                self.question = None;
            }
            key => prompt.key(key),
        }
        self.follow_filter();
        None
    }

    /// Adds a pasted text to the line that the user types. A pasted text is never taken for keys.
    pub fn paste(&mut self, text: &str) {
        self.message.clear();
        let question = self.question.as_mut();
        if !question.is_some_and(|question| question.paste(text)) {
            self.message = "pasted text is for the lines that you type, as after /".into();
        }
        self.follow_filter();
    }

    /// Shows the rows of a filter while the user types it.
    fn follow_filter(&mut self) {
        let mut prompts = self.question.iter();
        if let Some(prompt) = prompts.find(|it| matches!(it.question, Question::Filter)) {
            self.choice.filter.clone_from(&prompt.text);
        }
    }

    fn accept(&mut self) -> Option<Act> {
        let prompt = self.question.take()?;
        let typed = prompt.text.trim().to_owned();
        match prompt.question {
            Question::Filter => self.choice.filter = prompt.text,
            Question::User => self.choice.user = typed,
            Question::Limit(..) if typed.is_empty() => {}
            Question::Limit(group, gpu) => match typed.parse::<Extent>() {
                Err(error) => self.message = error.to_string(),
                Ok(_) => return self.ask(Question::Again(group, gpu, typed), prompt.about, ""),
            },
            Question::Again(group, gpu, max) if typed == max => {
                return Some(Act::Limit(group, max, gpu));
            }
            Question::Again(_, _, max) => {
                self.message = format!("'{}' is not '{max}': nothing changed", prompt.text);
            }
            Question::Move(group, process, moved) => {
                return Some(Act::Move(group, process, moved));
            }
            Question::Signal(group, process) => {
                return Some(Act::Signal(group, process, SIGNALS[prompt.at]));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

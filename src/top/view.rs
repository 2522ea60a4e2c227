//! What the user of `top` sees and does: the state that keys change. Reads and writes nothing.

use super::prompt::{Prompt, Question, SIGNALS};
use super::reader::Wanted;
use super::round::{Name, Round, Usage, Who};
use super::rows::{Choice, Item, Rows};
use crate::kill::Seen;
use gpulimit_base::units::Extent;
use gpulimit_limits::Selector;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
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
    /// Read a round now.
    Read,
    Interval(Duration),
    Pause(bool),
    Curves(Option<Wanted>),
    /// Set a limit of a group, for one GPU or for all.
    Limit {
        group: Name,
        max: String,
        gpu: Option<String>,
    },
    /// Send a signal to a process, or to all processes of a group.
    Signal {
        group: Name,
        process: Option<Seen>,
        signal: i32,
    },
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
    at: usize,
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
    pub fn new(choice: Choice, interval: Duration, readonly: bool) -> Self {
        Self {
            choice,
            interval,
            readonly,
            ..Self::default()
        }
    }

    /// Returns the place of the selected row; `None` if there are no rows or none is selected. If
    /// the selected item is gone, the row in its place is selected.
    pub fn position(&self, rows: &Rows, round: &Round) -> Option<usize> {
        let last = rows.len().checked_sub(1)?;
        let selected = self.selected.as_ref()?;
        Some(rows.position(selected, round).unwrap_or(self.at.min(last)))
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
        if self.question.is_some() {
            return self.answer(key.code);
        }
        match &self.page {
            Page::Tables => self.key_of_tables(key.code, round, page),
            Page::Help | Page::Details(_) => self.key_of_page(key.code, page),
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
            KeyCode::Char('p') => return Some(self.pause()),
            KeyCode::Char('q') if matches!(self.page, Page::Details(_)) => return Some(Act::Quit),
            KeyCode::Esc
            | KeyCode::Enter
            | KeyCode::Backspace
            | KeyCode::Char('q' | '?' | 'h')
            | KeyCode::F(1) => {
                let had_curves = matches!(self.page, Page::Details(_));
                self.page = Page::Tables;
                return had_curves.then_some(Act::Curves(None));
            }
            _ => {}
        }
        None
    }

    fn other_span(&mut self, longer: bool) -> Option<Act> {
        let Page::Details(wanted) = &mut self.page else {
            return None;
        };
        let at = SPANS
            .iter()
            .position(|span| *span == wanted.since.as_secs());
        let at = at.unwrap_or(0);
        let next = if longer { at + 1 } else { at.saturating_sub(1) };
        wanted.since = Duration::from_secs(*SPANS.get(next)?);
        Some(Act::Curves(Some(wanted.clone())))
    }

    fn pause(&mut self) -> Act {
        self.paused = !self.paused;
        Act::Pause(self.paused)
    }

    fn key_of_tables(&mut self, key: KeyCode, round: &Round, page: usize) -> Option<Act> {
        let choice = &mut self.choice;
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return Some(Act::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                (self.page, self.scroll) = (Page::Help, 0);
            }
            KeyCode::Char('p' | 'Z') => return Some(self.pause()),
            KeyCode::Char('r') | KeyCode::F(5) => return Some(Act::Read),
            KeyCode::Char('+' | '=') => return Some(self.other_interval(true)),
            KeyCode::Char('-') => return Some(self.other_interval(false)),
            KeyCode::Char('.' | '>') | KeyCode::F(6) => choice.sort = choice.sort.other(true),
            KeyCode::Char(',' | '<') => choice.sort = choice.sort.other(false),
            KeyCode::Char('I') => choice.inverted = !choice.inverted,
            KeyCode::Char('/') | KeyCode::F(4) => {
                let filter = choice.filter.clone();
                self.ask(Question::Filter, String::new(), &filter);
            }
            KeyCode::Char('u') => {
                let user = choice.user.clone();
                self.ask(Question::User, String::new(), &user);
            }
            KeyCode::Char('d') => self.other_gpu(round),
            KeyCode::Char('T') => {
                choice.fold_all = !choice.fold_all;
                choice.folded.clear();
            }
            KeyCode::Char('t' | ' ') => self.fold(round),
            KeyCode::Enter => return self.details(round),
            KeyCode::Char('s') if !self.readonly => self.ask_limit(round),
            KeyCode::Char('k') | KeyCode::F(9) if !self.readonly => self.ask_signal(round),
            KeyCode::Char('s' | 'k') | KeyCode::F(9) => {
                self.message = "--readonly: limits and processes cannot be changed".into();
            }
            KeyCode::Esc => self.reset(),
            key => self.move_selection(key, round, page),
        }
        None
    }

    /// Drops the selection; without one, the filters.
    fn reset(&mut self) {
        if self.selected.take().is_none() {
            self.choice.filter.clear();
            self.choice.user.clear();
            self.choice.gpus.clear();
        }
    }

    fn move_selection(&mut self, key: KeyCode, round: &Round, page: usize) {
        let rows = Rows::of(round, &self.choice);
        let Some(last) = rows.len().checked_sub(1) else {
            return;
        };
        let now = self.position(&rows, round);
        let groups = rows.groups.len();
        let next = match key {
            KeyCode::Down | KeyCode::Char('j' | 'J') => now.map_or(0, |now| now + 1),
            KeyCode::Up | KeyCode::Char('K') => now.map_or(last, |now| now.saturating_sub(1)),
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
        self.selected = rows.item(self.at, round);
    }

    /// Returns the selected item. Without a selection, tells the user to select a row.
    fn chosen(&mut self, round: &Round) -> Option<Item> {
        let rows = Rows::of(round, &self.choice);
        let item = self.position(&rows, round);
        let item = item.and_then(|at| rows.item(at, round));
        if item.is_none() {
            self.message = "select a row first, with the arrow keys".into();
        }
        item
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
        Some(Act::Curves(Some(wanted)))
    }

    fn other_interval(&mut self, longer: bool) -> Act {
        let now = self.interval.as_millis();
        let is_next = |millis: &&u64| {
            let millis = u128::from(**millis);
            if longer { millis > now } else { millis < now }
        };
        let next = match longer {
            true => INTERVALS.iter().find(is_next),
            false => INTERVALS.iter().rev().find(is_next),
        };
        if let Some(next) = next {
            self.interval = Duration::from_millis(*next);
        }
        Act::Interval(self.interval)
    }

    /// Shows only the next GPU, and after the last one all GPUs.
    fn other_gpu(&mut self, round: &Round) {
        let ids = round.gpus.iter().map(|gpu| gpu.id);
        let next = match self.choice.gpus.last() {
            None => round.gpus.first().map(|gpu| gpu.id),
            Some(now) => ids.skip_while(|id| id != now).nth(1),
        };
        self.choice.gpus = next.into_iter().collect();
    }

    fn ask(&mut self, question: Question, about: String, text: &str) {
        self.question = Some(Prompt::new(question, about, text));
    }

    fn ask_limit(&mut self, round: &Round) {
        let Some(Item {
            group: name, gpu, ..
        }) = self.chosen(round)
        else {
            return;
        };
        let Some(group) = round.groups.iter().find(|group| group.name == name) else {
            self.message = format!("group {} is not shown", name.name);
            return;
        };
        let find = |is: &dyn Fn(&Usage) -> bool| group.usages.iter().find(|usage| is(usage));
        // Only a limit for this GPU alone applies to a GPU that has one.
        let own = find(&|usage| usage.gpu == gpu && usage.own_limit);
        let shown = own.or_else(|| find(&|usage| usage.gpu == gpu));
        let shown = shown.or_else(|| find(&|usage| !usage.own_limit));
        let scope = match own {
            Some(usage) => format!("GPU {}", usage.label),
            None => format!("{} GPUs", Selector::All),
        };
        let now = shown.map_or("-", |usage| &usage.max_text);
        let about = format!(
            "{}: max on {scope} is {now}. Esc changes nothing.",
            group.title
        );
        let question = Question::Limit {
            group: name,
            gpu: own.and_then(|usage| usage.gpu).map(|id| id.to_string()),
            max: None,
        };
        self.ask(question, about, "");
    }

    fn ask_signal(&mut self, round: &Round) {
        let Some(Item { group, process, .. }) = self.chosen(round) else {
            return;
        };
        let (whom, command, process) = match process {
            None => ("all processes".into(), None, None),
            Some(Who {
                pid: None, own_pid, ..
            }) => {
                self.message = format!("process {own_pid} is in another pid namespace");
                return;
            }
            Some(
                who @ Who {
                    pid: Some(pid),
                    start_time,
                    ..
                },
            ) => {
                let mut processes = round.processes.iter();
                let process = processes.find(|it| it.who == who && it.group == group);
                let command = process.map(|process| process.command.as_str());
                (
                    format!("process {pid}"),
                    command,
                    Some(Seen { pid, start_time }),
                )
            }
        };
        let command = command.map_or_else(String::new, |command| format!(" Command: {command}"));
        let name = &group.name;
        let keys = "arrows choose, Enter sends, Esc does not.";
        let about = format!("Signal to {whom} of {name}: {keys}{command}");
        self.ask(Question::Signal { group, process }, about, "");
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
        if let Some(Prompt {
            question: Question::Filter,
            text,
            ..
        }) = &self.question
        {
            self.choice.filter.clone_from(text);
        }
    }

    fn accept(&mut self) -> Option<Act> {
        let mut prompt = self.question.take()?;
        let typed = prompt.text.trim().to_owned();
        match prompt.question {
            Question::Filter => self.choice.filter = prompt.text,
            Question::User => self.choice.user = typed,
            Question::Limit { max: None, .. } if typed.is_empty() => {}
            Question::Limit {
                max: ref mut max @ None,
                ..
            } => match typed.parse::<Extent>() {
                Err(error) => self.message = error.to_string(),
                Ok(_) => {
                    *max = Some(typed);
                    prompt.text.clear();
                    self.question = Some(prompt);
                }
            },
            Question::Limit {
                group,
                gpu,
                max: Some(max),
            } if typed == max => {
                return Some(Act::Limit { group, max, gpu });
            }
            Question::Limit { max: Some(max), .. } => {
                self.message = format!("'{}' is not '{max}': nothing changed", prompt.text);
            }
            Question::Signal { group, process } => {
                let signal = SIGNALS[prompt.at];
                return Some(Act::Signal {
                    group,
                    process,
                    signal,
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

//! What the user of `top` sees and does: the state that keys change. Reads and writes nothing.

use super::prompt::{Menu, Prompt, Question, Seen};
use super::reader::Wanted;
use super::round::{Name, Round};
use super::rows::{Choice, Item, Rows};
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
#[derive(Clone, Debug)]
pub struct View {
    pub choice: Choice,
    pub page: Page,
    /// The line or the list that waits for an answer.
    pub question: Option<Question>,
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
            page: Page::Tables,
            question: None,
            selected: None,
            at: 0,
            offsets: [0; 2],
            scroll: 0,
            paused: false,
            interval,
            readonly,
            message: String::new(),
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
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return Some(Act::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                (self.page, self.scroll) = (Page::Help, 0);
            }
            KeyCode::Char('p' | 'Z') => return Some(self.pause()),
            KeyCode::Char('r') | KeyCode::F(5) => return Some(Act::Read),
            KeyCode::Char('+' | '=') => return Some(self.other_interval(true)),
            KeyCode::Char('-') => return Some(self.other_interval(false)),
            KeyCode::Char('.' | '>') | KeyCode::F(6) => {
                self.choice.sort = self.choice.sort.step(1);
            }
            KeyCode::Char(',' | '<') => {
                self.choice.sort = self.choice.sort.step(super::rows::Sort::ALL.len() - 1);
            }
            KeyCode::Char('I') => self.choice.inverted = !self.choice.inverted,
            KeyCode::Char('/') | KeyCode::F(4) => {
                self.question = Some(Question::Filter(Prompt::new(&self.choice.filter)));
            }
            KeyCode::Char('u') => {
                self.question = Some(Question::User(Prompt::new(&self.choice.user)));
            }
            KeyCode::Char('d') => self.other_gpu(round),
            KeyCode::Char('T') => {
                self.choice.fold_all = !self.choice.fold_all;
                self.choice.folded.clear();
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
        let page = page.max(1);
        let from = |now: Option<usize>, none: usize, moved: fn(usize, usize) -> usize, by| {
            now.map_or(none, |now| moved(now, by))
        };
        let next = match key {
            KeyCode::Down | KeyCode::Char('j' | 'J') => from(now, 0, usize::saturating_add, 1),
            KeyCode::Up | KeyCode::Char('K') => from(now, last, usize::saturating_sub, 1),
            KeyCode::PageDown => from(now, page - 1, usize::saturating_add, page),
            KeyCode::PageUp => from(now, 0, usize::saturating_sub, page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            // To the first row of the other table.
            KeyCode::Tab | KeyCode::BackTab => match now {
                Some(now) if now < rows.groups.len() => rows.groups.len(),
                Some(_) => 0,
                None => rows.groups.len(),
            },
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
        let group = match self.chosen(round) {
            Some(Item::Group(name, _) | Item::Process { group: name, .. }) => name,
            None => return,
        };
        if !self.choice.folded.remove(&group) {
            self.choice.folded.insert(group);
        }
    }

    fn details(&mut self, round: &Round) -> Option<Act> {
        let (Item::Group(group, _) | Item::Process { group, .. }) = self.chosen(round)?;
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

    fn ask_limit(&mut self, round: &Round) {
        let Some(item) = self.chosen(round) else {
            return;
        };
        let (Item::Group(name, _) | Item::Process { group: name, .. }) = &item;
        let Some(group) = round.groups.iter().find(|group| group.name == *name) else {
            self.message = format!("group {} is not shown", name.name);
            return;
        };
        let (Item::Group(_, gpu) | Item::Process { gpu, .. }) = &item;
        let usages = group.usages.iter();
        // Only a limit for this GPU alone applies to a GPU that has one.
        let own = usages
            .clone()
            .find(|usage| usage.gpu == *gpu && usage.own_limit);
        let shown = own
            .or_else(|| usages.clone().find(|usage| usage.gpu == *gpu))
            .or_else(|| usages.clone().find(|usage| !usage.own_limit));
        self.question = Some(Question::Limit {
            group: name.clone(),
            title: group.title.clone(),
            gpu: own.and_then(|usage| usage.gpu).map(|id| id.to_string()),
            scope: match own {
                Some(usage) => format!("GPU {}", usage.label),
                None => format!("{} GPUs", Selector::All),
            },
            now: shown.map_or_else(|| "-".into(), |usage| usage.max_text.clone()),
            prompt: Prompt::new(""),
            typed: None,
        });
    }

    fn ask_signal(&mut self, round: &Round) {
        self.question = match self.chosen(round) {
            Some(Item::Group(group, _)) => Some(Question::Signal {
                whom: format!("all processes of {}", group.name),
                command: None,
                group,
                process: None,
                menu: Menu::default(),
            }),
            Some(Item::Process {
                pid: None, own_pid, ..
            }) => {
                self.message = format!("process {own_pid} is in another pid namespace");
                None
            }
            Some(Item::Process {
                group,
                pid: Some(pid),
                start_time,
                ..
            }) => Some(Question::Signal {
                whom: format!("process {pid} of {}", group.name),
                command: (round.processes.iter())
                    .find(|process| {
                        (process.pid, process.start_time) == (Some(pid), start_time)
                            && process.group == group
                    })
                    .map(|process| process.command.clone()),
                group,
                process: Some(Seen { pid, start_time }),
                menu: Menu::default(),
            }),
            None => None,
        };
    }

    /// Passes a key to the question. An answer ends the question.
    fn answer(&mut self, key: KeyCode) -> Option<Act> {
        let question = self.question.as_mut()?;
        match key {
            KeyCode::Esc => {
                if let Some(Question::Filter(_)) = self.question.take() {
                    self.choice.filter.clear();
                }
                None
            }
            KeyCode::Enter => self.accept(),
            key => {
                question.key(key);
                self.follow_filter();
                None
            }
        }
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
        if let Some(Question::Filter(prompt)) = &self.question {
            self.choice.filter.clone_from(&prompt.text);
        }
    }

    fn accept(&mut self) -> Option<Act> {
        match self.question.take()? {
            Question::Filter(prompt) => self.choice.filter = prompt.text,
            Question::User(prompt) => self.choice.user = prompt.text.trim().into(),
            Question::Limit { prompt, .. } if prompt.text.trim().is_empty() => {}
            Question::Limit {
                typed: None,
                group,
                title,
                gpu,
                scope,
                now,
                prompt,
            } => {
                let max = prompt.text.trim().to_owned();
                match max.parse::<gpulimit_base::units::Extent>() {
                    Err(error) => self.message = error.to_string(),
                    Ok(_) => {
                        self.question = Some(Question::Limit {
                            group,
                            title,
                            gpu,
                            scope,
                            now,
                            prompt: Prompt::new(""),
                            typed: Some(max),
                        });
                    }
                }
            }
            Question::Limit {
                typed: Some(max),
                group,
                gpu,
                prompt,
                ..
            } => {
                if prompt.text.trim() == max {
                    return Some(Act::Limit { group, max, gpu });
                }
                self.message = format!("'{}' is not '{max}': nothing changed", prompt.text);
            }
            Question::Signal {
                group,
                process,
                menu,
                ..
            } => {
                let signal = menu.signal();
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

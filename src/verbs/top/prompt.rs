//! The questions that `top` asks before it changes something, and the lines that filter rows.

use super::round::Name;
use ratatui::crossterm::event::KeyCode;

/// A process that the caller has seen before. Its pid may belong to another process now, with
/// another start time.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Seen {
    /// The pid in the caller's pid namespace.
    pub pid: u32,
    /// The start time in the process's slot, in clock ticks since boot; 0 if unknown.
    pub start_time: u64,
}

/// A line that the user types. The cursor is at its end.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    pub text: String,
}

/// The longest line that can be typed, in bytes.
const LONGEST: usize = 256;

impl Prompt {
    pub fn new(text: &str) -> Self {
        Self { text: text.into() }
    }

    fn key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) if self.text.len() < LONGEST && !c.is_control() => self.text.push(c),
            KeyCode::Backspace => _ = self.text.pop(),
            KeyCode::Delete => self.text.clear(),
            _ => {}
        }
    }
}

/// The signals that can be chosen, the usual one first.
pub const SIGNALS: [i32; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGCONT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// The list of signals.
#[derive(Clone, Debug, Default)]
pub struct Menu {
    pub at: usize,
}

impl Menu {
    fn key(&mut self, key: KeyCode) {
        let last = SIGNALS.len() - 1;
        self.at = match key {
            KeyCode::Down | KeyCode::Right | KeyCode::Tab | KeyCode::Char('j') => self.at + 1,
            KeyCode::Up | KeyCode::Left | KeyCode::BackTab | KeyCode::Char('k') => {
                self.at.saturating_sub(1)
            }
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => self.at,
        }
        .min(last);
    }

    pub fn signal(&self) -> i32 {
        SIGNALS[self.at]
    }
}

/// A question to the user. Enter answers it, and Esc drops it.
#[derive(Clone, Debug)]
pub enum Question {
    Filter(Prompt),
    User(Prompt),
    /// A new `max`, and then the same text again.
    Limit {
        group: Name,
        title: String,
        /// The GPU whose limit is set; `None` for all GPUs.
        gpu: Option<String>,
        scope: String,
        /// The present limit.
        now: String,
        prompt: Prompt,
        /// The new limit, once it was typed.
        typed: Option<String>,
    },
    /// The signal for a process, or for all processes of a group.
    Signal {
        group: Name,
        whom: String,
        /// The command line of the process.
        command: Option<String>,
        process: Option<Seen>,
        menu: Menu,
    },
}

impl Question {
    /// Adds the first line of a pasted text to the line that the user types. Returns false if the
    /// question has no such line.
    pub fn paste(&mut self, text: &str) -> bool {
        let (Self::Filter(prompt) | Self::User(prompt) | Self::Limit { prompt, .. }) = self else {
            return false;
        };
        let line = text.lines().next().unwrap_or_default();
        for c in line.chars() {
            prompt.key(KeyCode::Char(c));
        }
        true
    }

    /// Passes a key that neither answers nor drops the question.
    pub fn key(&mut self, key: KeyCode) {
        match self {
            Self::Filter(prompt) | Self::User(prompt) | Self::Limit { prompt, .. } => {
                prompt.key(key);
            }
            Self::Signal { menu, .. } => menu.key(key),
        }
    }
}

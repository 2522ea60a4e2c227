//! The questions that `top` asks before it changes something, and the lines that filter rows.

use super::round::{Name, Who};
use crate::figures::Word;
use libc::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, SIGUSR1, SIGUSR2};
use ratatui::crossterm::event::KeyCode;

/// The longest line that can be typed, in bytes.
const LONGEST: usize = 256;

/// The signals that can be chosen, the usual one first.
pub const SIGNALS: [i32; 9] = [
    SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGKILL, SIGSTOP, SIGCONT, SIGUSR1, SIGUSR2,
];

/// What the user is asked.
#[derive(Clone, Debug)]
pub enum Question {
    Filter,
    User,
    /// A new `max` of a group, for one GPU or for all.
    Limit(Name, Option<String>),
    /// The same `max` again.
    Again(Name, Option<String>, String),
    /// The signal for a process, or for all processes of a group.
    Signal(Name, Option<Who>),
    /// Whether to run `gpulimit suspend` or `gpulimit resume`, which is the verb, on a process or
    /// on all of a group.
    Move(Name, Option<Who>, Word),
}

/// A question, and the answer so far. Enter answers the question, and Esc drops it.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub question: Question,
    /// What stands above the answer.
    pub about: String,
    /// The line that the user types. The cursor is at its end.
    pub text: String,
    /// The place of the chosen signal.
    pub at: usize,
}

impl Prompt {
    /// Adds the first line of a pasted text to the line that the user types. Returns false if the
    /// question has no such line.
    pub fn paste(&mut self, text: &str) -> bool {
        let is_line = !matches!(self.question, Question::Signal(..) | Question::Move(..));
        for c in text.lines().take(usize::from(is_line)).flat_map(str::chars) {
            self.key(KeyCode::Char(c));
        }
        is_line
    }

    /// Passes a key that neither answers nor drops the question.
    pub fn key(&mut self, key: KeyCode) {
        let last = SIGNALS.len() - 1;
        let is_menu = matches!(self.question, Question::Signal(..));
        match key {
            KeyCode::Down | KeyCode::Right | KeyCode::Tab | KeyCode::Char('j') if is_menu => {
                self.at = last.min(self.at + 1);
            }
            KeyCode::Up | KeyCode::Left | KeyCode::BackTab | KeyCode::Char('k') if is_menu => {
                self.at = self.at.saturating_sub(1);
            }
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = last,
            KeyCode::Char(c) if self.text.len() < LONGEST && !c.is_control() => self.text.push(c),
            KeyCode::Backspace => _ = self.text.pop(),
            KeyCode::Delete => self.text.clear(),
            _ => {}
        }
    }
}

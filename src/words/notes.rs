//! What verbs say beside their results.

use std::process::ExitCode;

/// Lines for standard error, and whether something has failed.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    pub lines: Vec<String>,
    pub is_failure: bool,
}

impl Notes {
    /// The number of groups that get a line of their own.
    const LINES: usize = 8;

    pub fn add(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Adds the reasons why groups cannot be opened: those of the first groups, and the number of
    /// the others.
    pub fn add_unopened(&mut self, reasons: Vec<String>) {
        self.is_failure |= !reasons.is_empty();
        let others = reasons.len().saturating_sub(Self::LINES);
        self.lines.extend(reasons.into_iter().take(Self::LINES));
        if others > 0 {
            let s = if others == 1 { "" } else { "s" };
            self.add(format!("{others} more group{s} cannot be opened"));
        }
    }

    /// Returns the exit status of the verb.
    pub fn status(&self) -> ExitCode {
        ExitCode::from(u8::from(self.is_failure))
    }
}

/// A change that a verb has made: the name of a group or a file, and what was done.
pub type Change = (String, String);

/// What a verb has done, and notes.
#[derive(Debug, Default)]
pub struct Done {
    pub changes: Vec<Change>,
    pub notes: Notes,
}

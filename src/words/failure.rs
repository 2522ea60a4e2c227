//! The failure of a subcommand: a sentence for people and an exit status.

use gpulimit_group::GroupError;
use gpulimit_limits::{ExtentError, LimitsError};
use gpulimit_policy::PolicyError;
use std::fmt;
use std::io;
use std::path::Path;

/// Exit status for a mistake in the command line.
pub const USAGE: u8 = 2;
/// Exit status of `gpulimit run` if it fails before it starts the command.
pub const RUN: u8 = 125;
/// Exit status of `gpulimit run` if the command cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit status of `gpulimit run` if the command is not found.
pub const NOT_FOUND: u8 = 127;

/// Returns a function that turns an I/O error into "cannot WHAT PATH: ERROR". `what` is a verb,
/// such as "read".
pub fn cannot<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> Failure + 'a {
    move |error| {
        Failure::new(format_args!(
            "cannot {what} {path}: {error}",
            path = path.display()
        ))
    }
}

/// The failure of a subcommand: a sentence for people, and the exit status.
#[derive(Debug)]
pub struct Failure {
    text: String,
    pub status: u8,
    /// True if the command was told to stop, and has done nothing.
    pub is_interrupted: bool,
}

impl Failure {
    /// Returns a failure with this text and exit status 1.
    pub fn new(text: impl fmt::Display) -> Self {
        Self {
            text: text.to_string(),
            status: 1,
            is_interrupted: false,
        }
    }

    /// Returns the failure of a command that was told to stop.
    pub fn interrupted(text: impl fmt::Display) -> Self {
        Self {
            is_interrupted: true,
            ..Self::new(text)
        }
    }

    /// Returns the failure for a mistake in the command line, with exit status 2.
    pub fn usage(text: impl fmt::Display) -> Self {
        Self::new(text).with(USAGE)
    }

    /// Sets the exit status.
    pub fn with(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// Sets the exit status 125 of a failed `gpulimit run`. Mistakes in the command line keep their
    /// own status.
    pub fn of_run(self) -> Self {
        if self.status == USAGE {
            self
        } else {
            self.with(RUN)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        let usage = matches!(error, GroupError::Name { .. });
        Self::new(error.with_known()).with(if usage { USAGE } else { 1 })
    }
}

impl From<ExtentError> for Failure {
    /// Sets exit status 2 if a size such as -2G (all but 2 GiB) leaves no memory of a GPU, because
    /// the command line is wrong. Sets exit status 1 if a GPU's memory is not known.
    fn from(error: ExtentError) -> Self {
        let usage = matches!(error, ExtentError::TooMuch { .. });
        Self::new(error).with(if usage { USAGE } else { 1 })
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Group(error) => Self::new(error.with_known()),
            error => Self::new(error),
        }
    }
}

impl From<LimitsError> for Failure {
    fn from(error: LimitsError) -> Self {
        Self::new(error)
    }
}

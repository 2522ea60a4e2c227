//! A verb that could not do what it was asked for.

use gpulimit_group::GroupError;
use gpulimit_limits::{ExtentError, LimitsError};
use gpulimit_policy::PolicyError;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Something was wrong with what we were asked.
pub const USAGE: u8 = 2;
/// `run` failed before the command could start.
pub const RUN: u8 = 125;
/// The command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// Turns an error of the system into the failure to do `what` ("read", "write") to a file.
pub fn cannot<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> Failure + 'a {
    move |error| Failure::new(format_args!("cannot {what} {}: {error}", path.display()))
}

/// One sentence for a person, and the exit status.
#[derive(Debug)]
pub struct Failure {
    text: String,
    status: u8,
}

impl Failure {
    /// A failure with status 1.
    pub fn new(text: impl fmt::Display) -> Self {
        Self {
            text: text.to_string(),
            status: 1,
        }
    }

    /// A mistake in what we were asked.
    pub fn usage(text: impl fmt::Display) -> Self {
        Self::new(text).with(USAGE)
    }

    /// The same with this exit status.
    pub fn with(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// The same with status 125, unless it is a mistake in what we were asked.
    pub fn of_run(self) -> Self {
        if self.status == USAGE {
            self
        } else {
            self.with(RUN)
        }
    }

    /// Says it on stderr.
    pub fn report(&self) -> ExitCode {
        super::output::note(&self.text);
        ExitCode::from(self.status)
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
        Self::new(error).with(if usage { USAGE } else { 1 })
    }
}

impl From<ExtentError> for Failure {
    /// A size that no GPU has is a mistake of the caller; GPUs that are not known are a fault of
    /// the machine.
    fn from(error: ExtentError) -> Self {
        let usage = matches!(error, ExtentError::TooMuch { .. });
        Self::new(error).with(if usage { USAGE } else { 1 })
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::new(error)
    }
}

impl From<LimitsError> for Failure {
    fn from(error: LimitsError) -> Self {
        Self::new(error)
    }
}

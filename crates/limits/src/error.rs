//! The errors of a limits file.

use super::layout::MAX_RULES;
use gpulimit_base::held_signals;
use gpulimit_base::version;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a limits file cannot be used.
#[derive(Debug)]
pub enum LimitsError {
    /// A system call failed.
    Io {
        /// The operation on the limits file that failed: `open`, `create`, `map`, `lock`.
        what: &'static str,
        /// The path of the limits file.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// The file at the path is not a limits file, is cut short, or is damaged.
    Damaged {
        /// The path of the limits file.
        path: PathBuf,
        /// The reason why the limits file is not valid.
        why: &'static str,
    },
    /// The limits file was written by a version of gpulimit that uses another file format.
    Format {
        /// The path of the limits file.
        path: PathBuf,
        /// The file format number that the limits file states.
        found: u64,
    },
    /// The new limits have more rules than a limits file can hold.
    Full {
        /// The path of the limits file.
        path: PathBuf,
    },
    /// Another process has held the lock for changes of the limits file for too long.
    Busy {
        /// The path of the limits file.
        path: PathBuf,
    },
}

impl LimitsError {
    /// Returns a function that builds the error for a failed system call on the limits file `path`.
    pub(super) fn io(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self::Io {
            what,
            path: path.into(),
            error,
        }
    }

    /// Builds the error for a damaged limits file at `path`.
    pub(super) fn damaged(path: &Path, why: &'static str) -> Self {
        Self::Damaged {
            path: path.into(),
            why,
        }
    }

    /// Returns whether the error says that the limits file, or its directory, does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, path, error } => {
                let remedy = held_signals::remedy(error);
                write!(
                    f,
                    "cannot {what} the limits file {}: {error}{remedy}",
                    path.display()
                )
            }
            Self::Damaged { path, why } => write!(
                f,
                "the limits file {} is damaged ({why}): remove the group when no program runs in \
                 the group",
                path.display()
            ),
            Self::Format { path, found } => write!(
                f,
                "the limits file {} has file format {found}, but this gpulimit reads file format \
                 {}: use the same version of gpulimit for all programs, or remove the \
                 group when no program runs in it",
                path.display(),
                version::limits()
            ),
            Self::Full { path } => write!(
                f,
                "the limits file {} cannot hold more than {MAX_RULES} rules: set one limit for \
                 all GPUs in place of a limit for each GPU",
                path.display()
            ),
            Self::Busy { path } => write!(
                f,
                "another program is changing the limits file {}: try again, or end a `gpulimit \
                 set` that is stopped",
                path.display()
            ),
        }
    }
}

impl Error for LimitsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

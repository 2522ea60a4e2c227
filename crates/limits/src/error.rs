//! What goes wrong with a limits file.

use super::layout::{FORMAT, MAX_RULES};
use gpulimit_base::held_signals;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a limits file cannot be used.
#[derive(Debug)]
pub enum LimitsError {
    /// The system refused.
    Io {
        /// What was tried: `open`, `create`, `map`, `lock`.
        what: &'static str,
        /// The limits file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is something else, cut short or damaged.
    Damaged {
        /// The limits file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file was written by another version of gpulimit.
    Format {
        /// The limits file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// More rules than the file holds.
    Full {
        /// The limits file.
        path: PathBuf,
    },
    /// Somebody else has been changing the file for too long.
    Busy {
        /// The limits file.
        path: PathBuf,
    },
}

impl LimitsError {
    /// Whether the file, or its directory, does not exist.
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
                    "cannot {what} the limits {}: {error}{remedy}",
                    path.display()
                )
            }
            Self::Damaged { path, why } => write!(
                f,
                "the limits {} are damaged ({why}): remove the group when no program runs in it",
                path.display()
            ),
            Self::Format { path, found } => write!(
                f,
                "the limits {} are of format {found}, this gpulimit understands {FORMAT}: use matching versions or remove the group when no program runs in it",
                path.display()
            ),
            Self::Full { path } => write!(
                f,
                "the limits {} hold {MAX_RULES} rules at most: use one rule for all GPUs",
                path.display()
            ),
            Self::Busy { path } => write!(
                f,
                "the limits {} are locked by another program that is changing them: try again, or end a stopped `gpulimit set`",
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

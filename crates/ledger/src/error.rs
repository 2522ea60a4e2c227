//! Errors of ledgers.

use super::{MAX_DEVICES, MAX_SLOTS};
use gpulimit_base::file_system::Unsuitable;
use gpulimit_base::held_signals;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a ledger cannot be created, opened or joined.
#[derive(Debug)]
pub enum LedgerError {
    /// The system refused an operation on the ledger.
    Io {
        /// The ledger.
        path: PathBuf,
        /// The operation on the ledger file that failed: "open", "map", …
        action: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The file is not a ledger, or is a damaged one.
    Damaged {
        /// The ledger.
        path: PathBuf,
        /// The kind of damage.
        what: &'static str,
    },
    /// The ledger was created by a version of gpulimit with another ledger format.
    Version {
        /// The ledger.
        path: PathBuf,
        /// The format version in the ledger file.
        found: u64,
        /// The format version that this program uses.
        expected: u64,
    },
    /// The path no longer leads to the opened ledger file: the group was removed, and perhaps
    /// created again.
    Replaced {
        /// The ledger.
        path: PathBuf,
    },
    /// Every slot of the ledger has a living owner or is still draining.
    NoSlot {
        /// The ledger.
        path: PathBuf,
    },
    /// The file system has no space for another slot of the ledger.
    NoSpace {
        /// The ledger.
        path: PathBuf,
    },
    /// The ledger's table of GPUs has no free entry.
    NoDevice {
        /// The ledger.
        path: PathBuf,
    },
    /// The ledger was opened for reading only, but the operation would change it.
    ReadOnly {
        /// The ledger.
        path: PathBuf,
    },
    /// The group cannot be removed, because a process is a member of it or is just joining it.
    InUse {
        /// The ledger.
        path: PathBuf,
    },
    /// The ledger lies on a file system on which groups cannot be stored.
    FileSystem(Unsuitable),
}

impl LedgerError {
    pub(super) fn io(path: &Path, action: &'static str, error: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            action,
            error,
        }
    }

    /// Converts the error of an operation that needs file system space. A full file system becomes
    /// [`Self::NoSpace`].
    pub(super) fn io_with_room(path: &Path, action: &'static str, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace {
                path: path.to_owned(),
            },
            _ => Self::io(path, action, error),
        }
    }

    pub(super) fn damaged(path: &Path, what: &'static str) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what,
        }
    }

    /// Returns the path of the ledger that the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Damaged { path, .. }
            | Self::Version { path, .. }
            | Self::Replaced { path }
            | Self::NoSlot { path }
            | Self::NoSpace { path }
            | Self::NoDevice { path }
            | Self::ReadOnly { path }
            | Self::InUse { path } => path,
            Self::FileSystem(Unsuitable { path, .. }) => path,
        }
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::FileSystem(unsuitable) = self {
            return unsuitable.fmt(f);
        }
        write!(f, "ledger {}: ", self.path().display())?;
        match self {
            // Never reached: the function has already written this error's message above.
            Self::FileSystem(_) => Ok(()),
            Self::Io { action, error, .. } => {
                write!(f, "cannot {action}: {error}{}", held_signals::remedy(error))
            }
            Self::Damaged { what, .. } => {
                write!(
                    f,
                    "cannot be used ({what}), nor can the events and the history in it; end the \
                     group's programs, then remove the group and create it again"
                )
            }
            Self::Version {
                found, expected, ..
            } => write!(
                f,
                "the file has layout version {found}, but this gpulimit reads version {expected}; \
                 use one version of gpulimit for all members, or create the group again"
            ),
            Self::Replaced { .. } => {
                f.write_str("the group was removed while in use; join the group again")
            }
            Self::NoSlot { .. } => write!(
                f,
                "all {MAX_SLOTS} slots are taken by processes; end some of the group's processes, \
                 or use a second group"
            ),
            Self::NoSpace { .. } => f.write_str(
                "the ledger's file system has no space for another process; free some space on it",
            ),
            Self::NoDevice { .. } => write!(
                f,
                "all {MAX_DEVICES} entries of the ledger's GPU table are taken; create the group \
                 again"
            ),
            Self::ReadOnly { .. } => f.write_str("the ledger was opened for reading only"),
            Self::InUse { .. } => f.write_str("the group has living members; end them first"),
        }
    }
}

impl Error for LedgerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

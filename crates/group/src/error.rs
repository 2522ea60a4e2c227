//! The errors of groups and roots.

use super::{BELOW, Group, Kind, MAX_DEPTH, Root, directory};
use gpulimit_base::file_system::Unsuitable;
use gpulimit_base::held_signals;
use gpulimit_base::name::LONGEST;
use gpulimit_ledger::LedgerError;
use gpulimit_limits::{LimitsError, is_near};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a group, or the root of all groups, cannot be used.
#[derive(Debug)]
pub enum GroupError {
    /// The text is not a valid name of a group.
    Name {
        /// The invalid name.
        name: String,
    },
    /// A system call failed.
    Io {
        /// The operation on the path that failed: `open`, `create`, `list`, `remove`.
        what: &'static str,
        /// The path of the root, of the group, or of a file in the group.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// Users other than the owner could tamper with the directory.
    Unsafe {
        /// The path of the unsafe directory.
        path: PathBuf,
        /// The reason why the directory is unsafe.
        why: Fault,
    },
    /// The group does not exist.
    Missing {
        /// The name of the group that the user asked for.
        name: String,
        /// The root in which gpulimit looked for the group.
        root: PathBuf,
        /// The names of the groups that exist in the root; `None` where they were not listed.
        known: Option<Vec<String>>,
    },
    /// The group has child groups.
    HasGroups {
        /// The name of the group.
        name: String,
        /// The name of one of the child groups.
        below: String,
    },
    /// The directory that is a group, or should become one, holds files that gpulimit did not make.
    Foreign {
        /// The path of the first file that gpulimit did not make.
        path: PathBuf,
    },
    /// Programs run in the group.
    InUse {
        /// The name of the group.
        name: String,
    },
    /// A process that is no member may still join the job's group.
    Carried {
        /// The name of the group.
        name: String,
        /// The pid of the process.
        pid: u32,
    },
    /// The new group would belong to one user but lie in a directory of another user.
    Delegated {
        /// The name of the new group.
        name: String,
        /// The user who owns the parent directory.
        owner: u32,
    },
    /// The group cannot get another owner, because one of its child groups belongs to another user.
    OwnedBelow {
        /// The name of the group that should get another owner.
        name: String,
        /// The name of the child group.
        below: String,
        /// The user to whom the child group belongs.
        owner: u32,
    },
    /// Another process makes or removes the group and did not finish in time.
    Held {
        /// The directory of the group.
        path: PathBuf,
    },
    /// The file system of the root or the group is not suitable for groups.
    FileSystem(Unsuitable),
    /// The group's limits file cannot be used.
    Limits(LimitsError),
    /// The group's ledger cannot be used.
    Ledger(LedgerError),
}

/// The reason why gpulimit does not trust a directory.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// The path is a symbolic link.
    Symlink,
    /// The path does not lead to a directory.
    NotDirectory,
    /// The directory belongs to this user, who is neither the caller nor root.
    Owner(u32),
    /// Users other than the owner may write the directory; the value is its mode.
    Writable(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symlink => f.write_str("is a symbolic link"),
            Self::NotDirectory => f.write_str("is not a directory"),
            Self::Owner(uid) => write!(f, "belongs to user {uid}, not to you"),
            Self::Writable(mode) => write!(f, "can be written by other users (mode {mode:04o})"),
        }
    }
}

impl Fault {
    /// Returns the advice to the user on how to make the directory `path` safe.
    fn remedy(self, path: &Path) -> &'static str {
        match self {
            Self::Owner(_) if path.ends_with(BELOW) => {
                "only that user and root may use the groups in it"
            }
            Self::Symlink | Self::NotDirectory => {
                "remove this path, or set GPULIMIT_ROOT to a directory of your own"
            }
            Self::Owner(_) => {
                "let that user or root remove the directory, or set GPULIMIT_ROOT to a directory \
                 of your own"
            }
            Self::Writable(_) => {
                "run `chmod go-w` on the directory, or set GPULIMIT_ROOT to another directory"
            }
        }
    }
}

impl GroupError {
    /// Returns whether the error says that the group does not exist, or no longer exists.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Limits(error) => error.is_missing(),
            _ => false,
        }
    }

    /// Returns whether another program has a lease on a file of the group.
    /// [`Group::past_leases`](super::Group::past_leases) waits for the lease's end.
    pub fn is_leased(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Adds the existing groups to the error. Not for the preloaded library, which must not list
    /// other users' directories.
    #[must_use]
    pub fn with_known(mut self) -> Self {
        if let Self::Missing { root, known, .. } = &mut self {
            let there = Root { path: root.clone() }.groups().unwrap_or_default();
            // The only jobs to suggest are those that use a GPU.
            let has_live = |group: &Group| group.ledger().is_ok_and(|ledger| ledger.has_live());
            let there = there.iter();
            let there = there.filter(|group| group.kind() == Kind::Named || has_live(group));
            *known = Some(there.map(|group| group.name().into()).collect());
        }
        self
    }

    /// Builds the error for a failed system call, with the operation and the path.
    pub(super) fn io(what: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Io {
            what,
            path: path.into(),
            error,
        }
    }

    /// Builds the error for a file of a group that another program has a lease on.
    pub(super) fn leased(path: &Path) -> Self {
        Self::io("open", path, directory::leased(path))
    }
}

impl GroupError {
    /// Formats the message about a missing group, with the existing name that the user probably
    /// meant.
    fn absence(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Missing { name, root, known } = self else {
            return fmt::Display::fmt(self, f);
        };
        write!(f, "no group '{name}' in {}", root.display())?;
        let Some(known) = known else {
            return Ok(());
        };
        if let Some(near) = known.iter().find(|group| is_near(name, group)) {
            write!(f, ", did you mean {near}?")?;
        }
        let first = known.iter().take(8).map(String::as_str);
        let first = first.collect::<Vec<_>>().join(", ");
        match known.len() {
            0 => f.write_str(" (this root has no groups)"),
            1..=8 => write!(f, " (known: {first})"),
            more => write!(f, " (known: {first} and {} more)", more - 8),
        }
    }
}

/// Displays an error of a group without the advice to make the group, for commands that change
/// nothing.
pub struct WithoutCreateHint<'a>(pub &'a GroupError);

impl fmt::Display for WithoutCreateHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.absence(f)
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name } => write!(
                f,
                "invalid group name '{}': expected up to {MAX_DEPTH} parts separated by /, each \
                 of 1 to {LONGEST} characters A-Z a-z 0-9 . _ - and not starting with . or -",
                name.escape_debug()
            ),
            Self::Io { what, path, error } => {
                write!(f, "cannot {what} {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied => f.write_str(
                        ": ask the administrator for access (root runs a program for another user \
                         with `gpulimit run --user`), or set GPULIMIT_ROOT to a directory of your \
                         own",
                    ),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                        f.write_str(": set GPULIMIT_ROOT to a directory that can be made")
                    }
                    io::ErrorKind::StorageFull => f.write_str(": make room on that file system"),
                    _ => f.write_str(held_signals::remedy(error)),
                }
            }
            Self::Unsafe { path, why } => {
                write!(f, "{} {why}: {}", path.display(), why.remedy(path))
            }
            Self::Missing { name, .. } => {
                self.absence(f)?;
                match Kind::of(name) {
                    // A user cannot make a group of this name.
                    Kind::Job => f.write_str(
                        ": its job has ended, or is in another root; name another group, or leave \
                         the job with `unset GPULIMIT_GROUP`",
                    ),
                    Kind::Named => write!(
                        f,
                        ": make the group with `gpulimit create {name} --max SIZE{}`",
                        if name.contains('/') { " --parents" } else { "" }
                    ),
                }
            }
            Self::HasGroups { name, below } => write!(
                f,
                "group '{name}' has groups below it, such as {below}: remove the groups below \
                 first, or remove all of them with `gpulimit rm --recursive {name}`"
            ),
            Self::Foreign { path } => write!(
                f,
                "{} was not made by gpulimit, so gpulimit does not remove it or its directory: \
                 move {0} to another place first",
                path.display()
            ),
            Self::InUse { name } => {
                write!(
                    f,
                    "programs run in group '{name}': end them first; `gpulimit ps {name}` lists \
                     them"
                )
            }
            Self::Carried { name, pid } => write!(
                f,
                "process {pid} may still use group '{name}': its environment names the group, or \
                 cannot be read; end it first, as with `kill {pid}`"
            ),
            Self::Delegated { name, owner } => write!(
                f,
                "group '{name}' would be in a directory of user {owner}, where all groups belong \
                 to that user: leave out the owner, or give the group another name"
            ),
            Self::OwnedBelow { name, below, owner } => write!(
                f,
                "group '{name}' cannot get another owner, because group '{below}' in it belongs to \
                 user {owner}: remove that group first (`gpulimit rm --recursive {below}`); it \
                 can be made again afterwards"
            ),
            Self::Held { path } => write!(
                f,
                "another program is making or removing the group in {}: try again, or end a \
                 `gpulimit` command that is stopped",
                path.display()
            ),
            Self::FileSystem(unsuitable) => unsuitable.fmt(f),
            Self::Limits(error) => error.fmt(f),
            Self::Ledger(error) => error.fmt(f),
        }
    }
}

impl Error for GroupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::Limits(error) => error.source(),
            Self::Ledger(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Unsuitable> for GroupError {
    fn from(error: Unsuitable) -> Self {
        Self::FileSystem(error)
    }
}

impl From<LimitsError> for GroupError {
    fn from(error: LimitsError) -> Self {
        match error {
            LimitsError::Io { path, error, .. } if error.kind() == io::ErrorKind::WouldBlock => {
                Self::leased(&path)
            }
            error => Self::Limits(error),
        }
    }
}

impl From<LedgerError> for GroupError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Io { path, error, .. } if error.kind() == io::ErrorKind::WouldBlock => {
                Self::leased(&path)
            }
            error => Self::Ledger(error),
        }
    }
}

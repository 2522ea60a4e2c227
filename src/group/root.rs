//! The directory below which all groups of a user, or of a machine, are.

use super::hold::Hold;
use super::{Fault, Group, GroupError, Kind, name, user};
use crate::ledger::{Ledger, LedgerError, NoWitness};
use crate::limits::{LimitSet, Limits};
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where an administrator makes the root for everybody.
pub const SYSTEM: &str = "/run/gpulimit";

/// Where the groups are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Root {
    path: PathBuf,
}

/// Permissions of what is made below a root.
#[derive(Copy, Clone)]
struct Modes {
    directory: u32,
    limits: u32,
    ledger: u32,
}

const PRIVATE: Modes = Modes {
    directory: 0o700,
    limits: 0o600,
    ledger: 0o600,
};

/// In a system root everybody may see which groups there are and what they may use.
const PUBLIC: Modes = Modes {
    directory: 0o755,
    limits: 0o644,
    ledger: 0o600,
};

impl Root {
    /// `GPULIMIT_ROOT`, else [`SYSTEM`] where it is a directory, else `/dev/shm/gpulimit-<uid>`.
    ///
    /// Refuses a directory that others could tamper with. One that does not exist is fine: it is made with the
    /// first group.
    pub fn locate(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, GroupError> {
        let path: PathBuf = match env("GPULIMIT_ROOT") {
            Some(path) if Path::new(&path).is_absolute() => path.into(),
            Some(path) => {
                let text = if path.is_empty() {
                    "an empty text"
                } else {
                    "a relative path"
                };
                let why = format!("GPULIMIT_ROOT is {text}, expected an absolute path");
                return Err(GroupError::Io {
                    what: "use",
                    path: path.into(),
                    error: io::Error::new(ErrorKind::InvalidInput, why),
                });
            }
            None if is_directory(Path::new(SYSTEM)) => SYSTEM.into(),
            None => format!("/dev/shm/gpulimit-{}", user::effective()).into(),
        };
        Self::at(path)
    }

    /// A root at this path; see [`Root::locate`].
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, GroupError> {
        let root = Self { path: path.into() };
        match root.modes() {
            Err(GroupError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(root),
            checked => checked.map(|_| root),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory exists.
    pub fn exists(&self) -> bool {
        is_directory(&self.path)
    }

    /// All groups, by name.
    pub fn groups(&self) -> Result<Vec<Group>, GroupError> {
        let mut groups = Vec::new();
        for name in self.names()? {
            let group = Group::at(&self.path, &name);
            if group.limits_path().exists() {
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// Directories that are no complete group: left by somebody who was killed while making or removing one.
    pub fn leftovers(&self) -> Result<Vec<PathBuf>, GroupError> {
        let groups = self
            .names()?
            .into_iter()
            .map(|name| Group::at(&self.path, &name));
        let lacks = |path: PathBuf| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let incomplete =
            groups.filter(|group| lacks(group.limits_path()) || lacks(group.ledger_path()));
        Ok(incomplete.map(|group| group.path().into()).collect())
    }

    fn names(&self) -> Result<Vec<String>, GroupError> {
        let failed = |error| self.failed("list", error);
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().into_string()
                && name::check(&name).is_ok()
                && is_directory(&entry.path())
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The group of this name, which must exist.
    pub fn group(&self, name: &str) -> Result<Group, GroupError> {
        name::check(name)?;
        let group = Group::at(&self.path, name);
        if is_directory(group.path()) {
            check(group.path())?;
        }
        // Not `exists`, which cannot tell "there is none" from "may not look".
        match fs::symlink_metadata(group.limits_path()) {
            Ok(_) => Ok(group),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Err(self.missing(name))
            }
            Err(error) => Err(GroupError::Io {
                what: "open",
                path: group.path().into(),
                error,
            }),
        }
    }

    pub(super) fn missing(&self, name: &str) -> GroupError {
        let known = self.groups().unwrap_or_default();
        GroupError::Missing {
            name: name.into(),
            root: self.path.clone(),
            known: known.into_iter().map(|group| group.name().into()).collect(),
        }
    }

    /// Makes a group with these limits, or finds the one that is there, whose limits stay as they are.
    ///
    /// The group cannot be removed before the [`Created`] is dropped. Permissions are set as they should be,
    /// whatever the umask, which is left alone.
    pub fn create(&self, name: &str, limits: &LimitSet) -> Result<Created, GroupError> {
        name::check(name)?;
        let modes = self.ensure()?;
        let group = Group::at(&self.path, name);
        loop {
            make_directory(group.path(), modes.directory)?;
            let hold = match group.hold() {
                Err(GroupError::Missing { .. }) => continue,
                held => held?,
            };
            let new = Limits::create(&group.limits_path(), modes.limits, limits)?;
            Ledger::create(&group.ledger_path(), modes.ledger)?;
            return Ok(Created { group, new, hold });
        }
    }

    /// Removes a group in which no program runs.
    pub fn remove(&self, name: &str) -> Result<(), GroupError> {
        self.remove_if(&self.group(name)?, |_| true)
    }

    /// Removes the job groups that nobody needs any longer, and says which.
    ///
    /// A group is needed while a program runs in it, while it is held, and while the driver may not have let go
    /// of what its dead processes held.
    pub fn collect_garbage(&self) -> Result<Vec<String>, GroupError> {
        let mut collected = Vec::new();
        for name in self.names()? {
            if Kind::of(&name) != Kind::Job {
                continue;
            }
            let idle = |ledger: &Ledger| ledger.clean(&NoWitness).draining == 0;
            // One that cannot be removed is in the way of nobody.
            if self.remove_if(&Group::at(&self.path, &name), idle).is_ok() {
                collected.push(name);
            }
        }
        Ok(collected)
    }

    fn remove_if(
        &self,
        group: &Group,
        idle: impl FnOnce(&Ledger) -> bool,
    ) -> Result<(), GroupError> {
        let busy = || GroupError::InUse {
            name: group.name().into(),
        };
        check(group.path())?;
        let _alone = match Hold::alone(group.path()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(busy()),
            held => held.map_err(|error| group.failed("remove", error))?,
        };
        // A ledger that cannot be read is nobody's: those who could are of another version or gone.
        let ledger = Ledger::open(&group.ledger_path()).ok();
        let _removal = match &ledger {
            Some(ledger) if !idle(ledger) => return Err(busy()),
            Some(ledger) => Some(ledger.begin_removal().map_err(|error| match error {
                LedgerError::InUse { .. } => busy(),
                error => error.into(),
            })?),
            None => None,
        };
        // The limits go first: without them there is no group to come into.
        remove_file(&group.limits_path()).map_err(|error| group.failed("remove", error))?;
        let entries = fs::read_dir(group.path()).map_err(|error| group.failed("remove", error))?;
        for entry in entries.flatten() {
            if !is_directory(&entry.path()) {
                remove_file(&entry.path()).map_err(|error| group.failed("remove", error))?;
            }
        }
        fs::remove_dir(group.path()).map_err(|error| group.failed("remove", error))
    }

    /// Makes the root where it does not exist.
    fn ensure(&self) -> Result<Modes, GroupError> {
        if !self.exists() {
            make_directory(&self.path, PRIVATE.directory)?;
        }
        self.modes()
    }

    /// The permissions for what is made here, after the checks.
    fn modes(&self) -> Result<Modes, GroupError> {
        let about = check(&self.path)?;
        let public = about.uid() == 0 && about.mode() & 0o005 == 0o005;
        Ok(if public { PUBLIC } else { PRIVATE })
    }

    fn failed(&self, what: &'static str, error: io::Error) -> GroupError {
        GroupError::Io {
            what,
            path: self.path.clone(),
            error,
        }
    }
}

/// A group that has just been made or found, and cannot be removed before this is dropped.
#[derive(Debug)]
pub struct Created {
    /// The group.
    pub group: Group,
    /// Whether it was made; else it was there, with limits of its own.
    pub new: bool,
    /// Keeps it from being removed.
    pub hold: Hold,
}

/// A directory that is ours or root's and that nobody else can put other files into.
///
/// Root may use everybody's.
pub(super) fn check(path: &Path) -> Result<fs::Metadata, GroupError> {
    let about = fs::symlink_metadata(path).map_err(|error| GroupError::Io {
        what: "open",
        path: path.into(),
        error,
    })?;
    let me = user::effective();
    let mode = about.mode() & 0o7777;
    let sticky = about.uid() == 0 && mode & 0o1000 != 0;
    let why = if about.is_symlink() {
        Fault::Symlink
    } else if !about.is_dir() {
        Fault::NotDirectory
    } else if about.uid() != 0 && about.uid() != me && me != 0 {
        Fault::Owner(about.uid())
    } else if mode & 0o022 != 0 && !sticky {
        Fault::Writable(mode)
    } else {
        return Ok(about);
    };
    Err(GroupError::Unsafe {
        path: path.into(),
        why,
    })
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
}

/// Makes a directory with exactly these permissions; one that is there stays as it is, if it is safe.
fn make_directory(path: &Path, mode: u32) -> Result<(), GroupError> {
    let failed = |error| GroupError::Io {
        what: "create",
        path: path.into(),
        error,
    };
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check(path).map(|_| ()),
        Err(error) => Err(failed(error)),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

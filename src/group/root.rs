//! The directory below which all groups of a user, or of a machine, are.

use super::hold::Hold;
use super::power::Lowered;
use super::{Access, Fault, Group, GroupError, Kind, Members, name, user};
use crate::ledger::{Ledger, LedgerError, NoWitness};
use crate::limits::{LimitSet, Limits};
use crate::order;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where an administrator makes the root for everybody.
pub const SYSTEM: &str = "/run/gpulimit";

/// Where the groups are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Root {
    path: PathBuf,
}

/// Permissions of what is made below a root and not for members.
#[derive(Copy, Clone)]
struct Modes {
    directory: u32,
    limits: u32,
}

const PRIVATE: Modes = Modes {
    directory: 0o700,
    limits: 0o600,
};
/// In a system root everybody may see which groups there are and what they may use.
const PUBLIC: Modes = Modes {
    directory: 0o755,
    limits: 0o644,
};

impl Root {
    /// Where new groups are made: `GPULIMIT_ROOT`, else [`SYSTEM`] where we may make some there, else `/dev/shm/gpulimit-<uid>`.
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
            None if user::may_write(Path::new(SYSTEM)) => SYSTEM.into(),
            None => format!("/dev/shm/gpulimit-{}", user::effective()).into(),
        };
        Self::at(path)
    }

    /// The root that has a group of this name, [`SYSTEM`] before our own; as [`Root::locate`] where none has.
    pub fn locate_group(
        env: &dyn Fn(&str) -> Option<OsString>,
        name: &str,
    ) -> Result<Self, GroupError> {
        let system = Path::new(SYSTEM);
        let top = name.split('/').next().unwrap_or(name);
        if env("GPULIMIT_ROOT").is_none() && name::is_part(top) && is_directory(&system.join(top)) {
            return Self::at(system);
        }
        Self::locate(env)
    }

    /// The roots to look for groups in: [`SYSTEM`] where there is one, then our own; `GPULIMIT_ROOT` alone where it is set.
    pub fn locate_all(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<Self>, GroupError> {
        let own = Self::locate(env)?;
        let system = Path::new(SYSTEM);
        if env("GPULIMIT_ROOT").is_none() && own.path != system && is_directory(system) {
            return Ok(vec![Self::at(system)?, own]);
        }
        Ok(vec![own])
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

    /// All groups, each before those below it, by name. What we may not look into is left out.
    pub fn groups(&self) -> Result<Vec<Group>, GroupError> {
        let mut groups = self.directories()?;
        groups.retain(|group| group.limits_path().exists());
        Ok(groups)
    }

    /// The groups directly below one, or at the top, by name.
    pub fn groups_below(&self, parent: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let mut groups = self.directories_in(parent)?;
        groups.retain(|group| group.limits_path().exists());
        Ok(groups)
    }

    /// All groups below one, each before those below it, by name.
    pub fn groups_within(&self, group: &Group) -> Result<Vec<Group>, GroupError> {
        let mut groups = self.directories_below(Some(group))?;
        groups.retain(|group| group.limits_path().exists());
        Ok(groups)
    }

    /// Directories that are no complete group: left by somebody who was killed while making or removing one.
    pub fn leftovers(&self) -> Result<Vec<PathBuf>, GroupError> {
        let lacks = |path: PathBuf| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let mut groups = self.directories()?;
        groups.retain(|group| lacks(group.limits_path()) || lacks(group.ledger_path()));
        Ok(groups.into_iter().map(|group| group.path).collect())
    }

    /// Every directory that a group could be in, each before those below it.
    fn directories(&self) -> Result<Vec<Group>, GroupError> {
        self.directories_below(None)
    }

    fn directories_below(&self, group: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let mut found = Vec::new();
        let mut ahead = self.directories_in(group)?;
        ahead.reverse();
        while let Some(group) = ahead.pop() {
            if group.name.split('/').count() < super::MAX_DEPTH
                && let Ok(below) = self.directories_in(Some(&group))
            {
                ahead.extend(below.into_iter().rev());
            }
            found.push(group);
        }
        Ok(found)
    }

    fn directories_in(&self, parent: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let (path, prefix) = match parent {
            Some(parent) => (parent.below_path(), format!("{}/", parent.name)),
            None => (self.path.clone(), String::new()),
        };
        let failed = |error| GroupError::Io {
            what: "list",
            path: path.clone(),
            error,
        };
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().into_string()
                && name::is_part(&name)
                && is_directory(&entry.path())
            {
                names.push(prefix.clone() + &name);
            }
        }
        order::sort(&mut names);
        Ok(names
            .iter()
            .map(|name| Group::at(&self.path, name))
            .collect())
    }

    /// The group of this name, which must exist.
    pub fn group(&self, name: &str) -> Result<Group, GroupError> {
        name::check(name)?;
        let group = Group::at(&self.path, name);
        // Somebody who could replace one of the directories on the way could put another group in this one's place.
        for directory in group.directories().skip(1) {
            if is_directory(&directory) {
                check(&directory)?;
            }
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

    /// Makes a group with these limits for ourselves, or finds the one that is there, whose limits stay as they are. The group above it
    /// must be there.
    ///
    /// The group cannot be removed before the [`Created`] is dropped. Permissions are set as they should be,
    /// whatever the umask, which is left alone.
    pub fn create(&self, name: &str, limits: &LimitSet) -> Result<Created, GroupError> {
        self.create_for(name, limits, Access::default())
    }

    /// As [`Root::create`], for others. They may then be in the groups above it, too.
    ///
    /// Below a directory that belongs to a user everything belongs to him.
    pub fn create_for(
        &self,
        name: &str,
        limits: &LimitSet,
        access: Access,
    ) -> Result<Created, GroupError> {
        name::check(name)?;
        let modes = self.ensure()?;
        let group = Group::at(&self.path, name);
        let mut limits = limits.clone();
        if let Some(parent) = group.parent() {
            // Contexts are left out only where every group on the path says so.
            let above = self.group(parent.name())?.limits()?.options();
            limits.options.count_context &= above.count_context;
        }
        loop {
            let mut power = Lowered::to_owner_of(&group)?;
            match make_directory(group.path(), modes.directory) {
                // Removed as soon as made, by who cleans up: nobody held it yet.
                Err(GroupError::Io { error, .. })
                    if error.kind() == ErrorKind::NotFound
                        && group.path().parent().is_some_and(is_directory) =>
                {
                    continue;
                }
                made => made?,
            }
            if power.is_none() {
                // Somebody may have made it meanwhile, where everybody may.
                power = Lowered::to_owner_of(&group)?;
            }
            if let Some(owner) = power.as_ref().map(Lowered::user)
                && access.owner.is_some_and(|wanted| wanted != owner)
            {
                return Err(GroupError::Delegated {
                    name: name.into(),
                    owner,
                });
            }
            let hold = match group.make_lock(access).and_then(|()| group.hold()) {
                // Removed meanwhile, with the directory.
                Err(error) if error.is_missing() => continue,
                held => held,
            };
            let made = hold.and_then(|hold| Ok((group.fill(&limits, access, modes)?, hold)));
            return match made {
                Ok((new, hold)) => Ok(Created { group, new, hold }),
                Err(error) => {
                    // Nothing half-made stays; what cannot be removed either, `leftovers` names.
                    let _ = self.remove_leftover(&group);
                    Err(error)
                }
            };
        }
    }

    /// Whether a group can get another owner. Not while there are groups in it that belong to anybody else than him: a directory of one user's
    /// among another's can be neither changed nor removed with the power of either.
    pub fn check_owner(&self, group: &Group, owner: u32) -> Result<(), GroupError> {
        for below in self.directories_in(Some(group))? {
            let about = fs::symlink_metadata(below.path());
            let whose = about.map_err(|error| below.failed("open", error))?.uid();
            if whose != owner {
                return Err(GroupError::Kept {
                    name: group.name.clone(),
                    below: below.name,
                    owner: whose,
                });
            }
        }
        Ok(())
    }

    /// Removes a group in which no program runs.
    pub fn remove(&self, name: &str) -> Result<(), GroupError> {
        self.remove_if(&self.group(name)?, |_| true)
    }

    /// Removes the job groups that nobody needs any longer, of all or of those directly below one, and says which.
    ///
    /// A group is needed while a program runs in it, while it is held, while there are groups below it, and while the driver may not
    /// have let go of what its dead processes held.
    pub fn collect_garbage(&self, within: Garbage<'_>) -> Result<Vec<String>, GroupError> {
        let mut groups = match within {
            Garbage::Everywhere => self.directories()?,
            Garbage::Below(parent) => {
                self.directories_in(parent.map(|name| Group::at(&self.path, name)).as_ref())?
            }
        };
        // Those below before the one that they are in.
        groups.reverse();
        let idle = |ledger: &Ledger| ledger.clean(&NoWitness).draining == 0;
        groups.retain(|group| {
            // One that cannot be removed is in the way of nobody.
            group.kind() == Kind::Job && self.remove_if(group, idle).is_ok()
        });
        Ok(groups.into_iter().map(|group| group.name).collect())
    }

    /// Removes the directories that never became a group, or are one no longer, and that nobody is making one of; says which.
    ///
    /// Those that have limits stay: these are somebody's word.
    pub fn remove_leftovers(&self) -> Result<Vec<PathBuf>, GroupError> {
        let mut groups = self.directories()?;
        // Those below before the one that they are in.
        groups.reverse();
        groups.retain(|group| matches!(self.remove_leftover(group), Ok(true)));
        Ok(groups.into_iter().map(|group| group.path).collect())
    }

    fn remove_leftover(&self, group: &Group) -> Result<bool, GroupError> {
        let lacks_limits = || {
            fs::symlink_metadata(group.limits_path())
                .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        if !lacks_limits() {
            return Ok(false);
        }
        let _power = Lowered::to_owner_of(group)?;
        // Whoever is making it holds it; he may have come to an end before we did.
        let alone = group.hold_alone()?;
        if !lacks_limits() {
            return Ok(false);
        }
        self.remove_held(group, alone, |_| true).map(|()| true)
    }

    fn remove_if(
        &self,
        group: &Group,
        idle: impl FnOnce(&Ledger) -> bool,
    ) -> Result<(), GroupError> {
        let _power = Lowered::to_owner_of(group)?;
        let alone = group.hold_alone()?;
        self.remove_held(group, alone, idle)
    }

    fn remove_held(
        &self,
        group: &Group,
        _alone: Hold,
        idle: impl FnOnce(&Ledger) -> bool,
    ) -> Result<(), GroupError> {
        let busy = || GroupError::InUse {
            name: group.name().into(),
        };
        let below = self.directories_in(Some(group))?;
        if let Some(first) = below.first() {
            return Err(GroupError::HasGroups {
                name: group.name().into(),
                below: first.name().into(),
            });
        }
        let ledger = Ledger::open(&group.ledger_path()).ok();
        let _removal = match &ledger {
            // Those who could read it may be of another version, and would go on beside whoever makes the group again.
            None if Ledger::is_used(&group.ledger_path()) => return Err(busy()),
            Some(ledger) if !idle(ledger) => return Err(busy()),
            Some(ledger) => Some(ledger.begin_removal().map_err(|error| match error {
                LedgerError::InUse { .. } => busy(),
                error => error.into(),
            })?),
            None => None,
        };
        let failed = |error| group.failed("remove", error);
        let protected = group
            .limits()
            .is_ok_and(|limits| limits.rules().is_ok_and(|rules| rules.protects()));
        // Whatever its owner has left there is found before anything is gone.
        match fs::remove_dir(group.below_path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(GroupError::Io {
                    what: "remove",
                    path: group.below_path(),
                    error,
                });
            }
            _ => {}
        }
        // The limits go first of the files: without them there is no group to come into.
        remove_file(&group.limits_path()).map_err(failed)?;
        let entries = fs::read_dir(group.path()).map_err(failed)?;
        for entry in entries.flatten() {
            if !is_directory(&entry.path()) && entry.path() != group.lock_path() {
                remove_file(&entry.path()).map_err(failed)?;
            }
        }
        // Last of the files: until then nobody comes in.
        remove_file(&group.lock_path()).map_err(failed)?;
        match fs::remove_dir(group.path()) {
            // Somebody has come to make it anew, or to clean up, since the lock is gone: the directory is his now.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error)
                if error.kind() == ErrorKind::DirectoryNotEmpty && group.lock_path().exists() => {}
            removed => removed.map_err(failed)?,
        }
        if protected {
            group.tell_parent();
        }
        Ok(())
    }

    /// Makes the root where it does not exist; root's own is for everybody to look into.
    pub fn make(&self) -> Result<(), GroupError> {
        if !self.exists() {
            let modes = if user::effective() == 0 {
                PUBLIC
            } else {
                PRIVATE
            };
            make_directory(&self.path, modes.directory)?;
        }
        self.modes().map(|_| ())
    }

    /// Holds a file of the root alone, at once or not at all (`WouldBlock`). It is made where it is not there.
    pub fn hold_alone(&self, file: &str) -> io::Result<Hold> {
        let path = self.path.join(file);
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Hold::alone(&path)
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

/// Which garbage to collect.
#[derive(Copy, Clone, Debug)]
pub enum Garbage<'a> {
    /// All of the root.
    Everywhere,
    /// What is directly below this group, or at the top.
    Below(Option<&'a str>),
}

impl Group {
    /// Makes the file that is locked, where it is not there.
    fn make_lock(&self, access: Access) -> Result<(), GroupError> {
        let path = self.lock_path();
        let made = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let made = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            made => made.and_then(|_| access.give_file(&path)),
        };
        made.map_err(|error| match error.kind() {
            // The directory, or the file at once, by who removes the group or cleans up.
            ErrorKind::NotFound => GroupError::Missing {
                name: self.name.clone(),
                root: self.root.clone(),
                known: Vec::new(),
            },
            _ => self.failed("create", error),
        })
    }

    /// Keeps everybody out; [`GroupError::InUse`] while somebody holds it.
    fn hold_alone(&self) -> Result<Hold, GroupError> {
        check(&self.path)?;
        self.make_lock(Access::default())?;
        match Hold::alone(&self.lock_path()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(GroupError::InUse {
                name: self.name.clone(),
            }),
            held => held.map_err(|error| self.failed("remove", error)),
        }
    }

    /// Makes what is in its directory; whether the limits were made, or were there.
    fn fill(&self, limits: &LimitSet, access: Access, modes: Modes) -> Result<bool, GroupError> {
        let failed = |error| self.failed("create", error);
        if !is_directory(&self.below_path()) {
            make_directory(&self.below_path(), modes.directory)?;
            access.give_directory(&self.below_path()).map_err(failed)?;
        }
        if !self.ledger_path().exists() {
            Ledger::create(&self.ledger_path(), 0o600)?;
            access.give_file(&self.ledger_path()).map_err(failed)?;
        }
        if !self.limits_path().exists() {
            self.admit_above(access)?;
        }
        // Last: with them it is a group.
        let new = Limits::create(&self.limits_path(), modes.limits, limits)?;
        if new && limits.protects() {
            self.tell_parent();
        }
        Ok(new)
    }

    /// Who may be in it.
    pub fn access(&self) -> Result<Access, GroupError> {
        Access::of(&self.ledger_path()).map_err(|error| self.failed("open", error))
    }

    /// Says who may be in it, besides those who are.
    pub fn give_access(&self, access: Access) -> Result<(), GroupError> {
        let power = Lowered::to_owner_of(self)?;
        let given = access
            .give_file(&self.ledger_path())
            .and_then(|()| access.give_file(&self.lock_path()))
            .and_then(|()| access.give_directory(&self.below_path()));
        given.map_err(|error| self.failed("change", error))?;
        drop(power);
        self.admit_above(access)
    }

    /// Who is in a group is charged in all above it, and so must be able to write their ledgers.
    fn admit_above(&self, access: Access) -> Result<(), GroupError> {
        let user = access.owner.filter(|uid| *uid != user::effective());
        for above in self.upwards().skip(1) {
            let there = above.access()?;
            let user_is_in = user.is_none_or(|uid| there.admits(uid));
            let members_are_in = access.members == Members::Owner
                || there.members == Members::All
                || there.members == access.members;
            if user_is_in && members_are_in {
                continue;
            }
            let members = match there.members {
                Members::Owner if user_is_in => access.members,
                _ => Members::All,
            };
            let wider = Access {
                owner: None,
                members,
            };
            wider
                .give_file(&above.ledger_path())
                .and_then(|()| wider.give_file(&above.lock_path()))
                .map_err(|error| above.failed("change", error))?;
        }
        Ok(())
    }
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
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), GroupError> {
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

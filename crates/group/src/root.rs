//! The directory below which all groups of a user, or of a machine, are.

use super::contents::{self, Contents};
use super::descent::Descent;
use super::directory::Directory;
use super::hold::Hold;
use super::power::{Lowered, Rights};
use super::trust::check;
use super::{Access, Fault, Group, GroupError, name, user};
use gpulimit_base::file_system;
use gpulimit_base::order;
use gpulimit_limits::LimitSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where an administrator makes the root for everybody.
pub const SYSTEM: &str = "/run/gpulimit";

/// How often a group is made anew that is removed while it is made.
const TRIES: u32 = 1_000;

/// Where the groups are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Root {
    pub(super) path: PathBuf,
}

/// Permissions of what is made below a root and not for members.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(super) struct Modes {
    pub directory: u32,
    pub limits: u32,
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
    /// Where new groups are made: `GPULIMIT_ROOT`, else [`SYSTEM`] where we may make some there,
    /// else `/dev/shm/gpulimit-<uid>`.
    ///
    /// Root makes [`SYSTEM`] with the first group: anybody may take a name in `/dev/shm` first. In
    /// a user namespace, and in a container whose `/run` cannot have groups, root has a directory
    /// in `/dev/shm` like everybody.
    ///
    /// Refuses a directory that others could tamper with, and a default one that somebody else has
    /// made. One that does not exist is fine: it is made with the first group.
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
                let error = io::Error::new(ErrorKind::InvalidInput, why);
                return Err(GroupError::io("use", Path::new(&path), error));
            }
            None if user::may_write(Path::new(SYSTEM)) || is_made_by_us() => SYSTEM.into(),
            None => own_default(),
        };
        Self::at(path)
    }

    /// The root that has a group of this name, [`SYSTEM`] before our own; as [`Root::locate`] where
    /// none has.
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

    /// The roots to look for groups in: [`SYSTEM`] where there is one, then our own;
    /// `GPULIMIT_ROOT` alone where it is set.
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
            Err(error) if is_not_found(&error) => Ok(root),
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
        let mut groups = self.directories_below(None)?;
        groups.retain(Group::has_limits);
        Ok(groups)
    }

    /// The groups directly below one, or at the top, by name.
    pub fn groups_below(&self, parent: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let mut groups = self.directories_in(parent)?;
        groups.retain(Group::has_limits);
        Ok(groups)
    }

    /// All groups below one, each before those below it, by name.
    pub fn groups_within(&self, group: &Group) -> Result<Vec<Group>, GroupError> {
        let mut groups = self.directories_below(Some(group))?;
        groups.retain(Group::has_limits);
        Ok(groups)
    }

    /// Every directory that a group could be in, each before those below it.
    pub(super) fn directories_below(
        &self,
        group: Option<&Group>,
    ) -> Result<Vec<Group>, GroupError> {
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

    pub(super) fn directories_in(&self, parent: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let (path, prefix) = match parent {
            Some(parent) => (parent.below_path(), format!("{}/", parent.name)),
            None => (self.path.clone(), String::new()),
        };
        let failed = |error| GroupError::io("list", &path, error);
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
        // Somebody who could replace one of the directories on the way could put another group in
        // this one's place.
        for directory in group.directories().skip(1) {
            let about = fs::symlink_metadata(&directory);
            if about.is_ok_and(|about| about.is_dir() || about.is_symlink()) {
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
            Err(error) => Err(GroupError::io("open", group.path(), error)),
        }
    }

    pub(super) fn missing(&self, name: &str) -> GroupError {
        let known = self.groups().unwrap_or_default();
        // A name that is not there is never meant for the group of an ended job.
        let ended = Group::ended(&known);
        let known = known.into_iter().zip(ended).filter(|(_, ended)| !ended);
        GroupError::Missing {
            name: name.into(),
            root: self.path.clone(),
            known: known.map(|(group, _)| group.name().into()).collect(),
        }
    }

    /// Makes a group with these limits for ourselves, or finds the one that is there, whose limits
    /// stay as they are. The group above it must be there.
    ///
    /// The group cannot be removed before the [`Created`] is dropped. Permissions are set as they
    /// should be, whatever the umask, which is left alone.
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
        // A clean-up may remove the directory between any two steps. Some file systems, such as
        // procfs, always say that a name cannot be made because it does not exist.
        let is_in_directory = || group.path().parent().is_some_and(is_directory);
        let was_removed =
            |error: &GroupError| error.is_missing() || is_not_found(error) && is_in_directory();
        let mut again = 0..TRIES;
        let made = loop {
            match self.try_create(&group, &limits, access, modes) {
                Err(error) if was_removed(&error) && again.next().is_some() => {}
                made => break made,
            }
        };
        if made.is_err() {
            // Nothing half-made stays; `leftovers` names what cannot be removed.
            let _ = self.remove_leftover(&group);
        }
        made
    }

    fn try_create(
        &self,
        group: &Group,
        limits: &LimitSet,
        access: Access,
        modes: Modes,
    ) -> Result<Created, GroupError> {
        let power = Lowered::to_owner_of(group)?;
        check_delegation(group.name(), power.as_ref().map(Lowered::user), access)?;
        make_directory(group.path(), modes.directory)?;
        drop(power);
        let place = Descent::to(group)?;
        // In a directory such as /dev/shm another user may have made it meanwhile.
        check_delegation(group.name(), place.user(), access)?;
        group.check_content()?;
        group.make_lock(&place.directory, access)?;
        let hold = group.hold_in(&place.directory)?;
        let new = group.fill(place, limits, access, modes)?;
        let group = group.clone();
        Ok(Created { group, new, hold })
    }

    /// As [`Group::past_leases`], for a group that may not exist yet.
    pub fn past_leases<T>(
        &self,
        name: &str,
        until: Instant,
        act: impl FnMut() -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        Group::at(&self.path, name).past_leases(until, act)
    }

    /// Whether a group can get another owner. Not while there are groups in it that belong to
    /// anybody else than him: a directory of one user's among another's can be neither changed nor
    /// removed with the power of either.
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

    /// Makes the root where it does not exist; root's own is for everybody to look into.
    pub fn make(&self) -> Result<(), GroupError> {
        if !self.exists() {
            let modes = if user::effective() == 0 {
                PUBLIC
            } else {
                PRIVATE
            };
            self.make_directory(modes.directory)?;
        }
        self.modes().map(|_| ())
    }

    /// Holds a file of the root alone, at once or not at all (`WouldBlock`). It is made where it is
    /// not there.
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

    /// Whether users other than the owner can find groups here: the root belongs to the machine's
    /// root and is open to all.
    pub fn is_public(&self) -> bool {
        match self.modes() {
            Ok(modes) => modes == PUBLIC,
            Err(error) => is_not_found(&error) && self.is_systems(),
        }
    }

    /// Makes the root's directory. In a directory of a user root makes it with that user's rights,
    /// so that it is the user's, and by descriptor, so that nothing else gets these permissions.
    /// `false`: something has the name already.
    pub(super) fn make_directory(&self, mode: u32) -> Result<bool, GroupError> {
        let failed = |error| GroupError::io("create", &self.path, error);
        let (Some(above), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(failed(ErrorKind::InvalidInput.into()));
        };
        let above = fs::canonicalize(above).and_then(|above| Directory::open(&above));
        let above = above.map_err(failed)?;
        let owner = above.about().map_err(failed)?.uid();
        let is_users = user::effective() == 0 && owner != 0;
        let power = is_users.then(|| Lowered::to(&Rights::of_user(owner)));
        let _power = power.transpose().map_err(failed)?;
        match above.create_directory(name, mode) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|_| true).map_err(failed),
        }
    }

    /// Whether this is the machine's root and ours to make.
    fn is_systems(&self) -> bool {
        user::effective() == 0 && self.path == Path::new(SYSTEM)
    }

    /// Makes the root where it does not exist.
    fn ensure(&self) -> Result<Modes, GroupError> {
        if !self.exists() {
            let modes = if self.is_systems() { PUBLIC } else { PRIVATE };
            self.make_directory(modes.directory)?;
        }
        file_system::check(&self.path)?;
        self.modes()
    }

    /// The permissions for what is made here, after the checks.
    fn modes(&self) -> Result<Modes, GroupError> {
        let about = check(&self.path)?;
        // Root may use everybody's, but not in place of the one that it has by default.
        if about.uid() != user::effective() && self.path == own_default() {
            return Err(GroupError::Unsafe {
                path: self.path.clone(),
                why: Fault::Owner(about.uid()),
            });
        }
        let public = about.uid() == 0 && about.mode() & 0o005 == 0o005;
        Ok(if public { PUBLIC } else { PRIVATE })
    }
}

/// Where a user's groups are by default.
fn own_default() -> PathBuf {
    format!("/dev/shm/gpulimit-{}", user::effective()).into()
}

/// Whether this process is root and makes [`SYSTEM`], which is not there, with its first group.
fn is_made_by_us() -> bool {
    let missing =
        || fs::symlink_metadata(SYSTEM).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let above = Path::new(SYSTEM).parent().unwrap_or(Path::new("/"));
    user::effective() == 0
        && missing()
        && user::may_write(above)
        && file_system::check(above).is_ok()
}

fn is_not_found(error: &GroupError) -> bool {
    matches!(error, GroupError::Io { error, .. } if error.kind() == ErrorKind::NotFound)
}

/// Refuses to make a group for somebody else among a user's.
fn check_delegation(name: &str, user: Option<u32>, access: Access) -> Result<(), GroupError> {
    match user {
        Some(owner) if access.owner.is_some_and(|wanted| wanted != owner) => {
            Err(GroupError::Delegated {
                name: name.into(),
                owner,
            })
        }
        _ => Ok(()),
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

impl Group {
    /// Whether it has limits, as far as can be seen.
    fn has_limits(&self) -> bool {
        Directory::open(&self.path).is_ok_and(|there| contents::has_limits(&there))
    }

    /// Whether all that is in its directory is ours, so that a group can be made there.
    fn check_content(&self) -> Result<(), GroupError> {
        let contents = Directory::open(&self.path).and_then(|there| Contents::of(&there));
        match contents {
            Ok(contents) => match (contents.leased, contents.foreign.first()) {
                (Some(name), _) => Err(GroupError::leased(&self.path.join(name))),
                (None, Some(name)) => Err(GroupError::Foreign {
                    path: self.path.join(name),
                }),
                (None, None) => Ok(()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Err(self.missing()),
            Err(error) => Err(self.failed("list", error)),
        }
    }
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
}

/// Makes a directory with exactly these permissions; one that is there stays as it is, if it is
/// safe.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), GroupError> {
    let failed = |error| GroupError::io("create", path, error);
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check(path).map(|_| ()),
        Err(error) => Err(failed(error)),
    }
}

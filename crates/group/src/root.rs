//! The root: the directory that holds all groups of a user, or of the machine.

use super::contents::{self, Contents};
use super::descent::Descent;
use super::directory::{Directory, EntryKind};
use super::hold::Hold;
use super::power::{Lowered, Rights};
use super::removal::Budget;
use super::trust::check;
use super::{Access, BELOW, Fault, Group, GroupError, name, user};
use gpulimit_base::file_system;
use gpulimit_base::name::SECRET;
use gpulimit_limits::{LimitSet, Limits};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The root for all users of a machine. The user root makes this directory.
pub const SYSTEM: &str = "/run/gpulimit";

/// The beginning of the name of a user's own root; the uid follows.
const OWN: &str = "gpulimit-";

/// The most attempts to make a group that other processes keep removing.
const TRIES: u32 = 1_000;

/// The directory that holds all groups of a user or of the machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Root {
    pub(super) path: PathBuf,
}

/// The permissions of the directories and limits files below a root. Files that members write do
/// not use these permissions.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(super) struct Modes {
    pub directory: u32,
    pub limits: u32,
}

const PRIVATE: Modes = Modes {
    directory: 0o700,
    limits: 0o600,
};
/// In the system root every user may see the groups and their limits.
const PUBLIC: Modes = Modes {
    directory: 0o755,
    limits: 0o644,
};

impl Root {
    /// Finds the root for new groups; its directory need not exist yet. The order is:
    /// 1. `GPULIMIT_ROOT`,
    /// 2. [`SYSTEM`], if the caller may make groups there,
    /// 3. `/dev/shm/gpulimit-<uid>`. Root uses it only in a user namespace, or in a container
    ///    without a usable `/run`, because any user could take the name first.
    ///
    /// Refuses a directory that other users could tamper with, and a default directory that another
    /// user has made.
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
            None if user::may_write(Path::new(SYSTEM)) || makes_system_root() => SYSTEM.into(),
            None => own_default(),
        };
        Self::at(path)
    }

    /// Returns the default root of the calling user, unchecked.
    pub fn of_user() -> Self {
        let path = own_default();
        Self { path }
    }

    /// Returns the default root of the calling user; for root, those of all users.
    pub fn of_users() -> Vec<Self> {
        let own = own_default();
        if user::effective() != 0 {
            return vec![Self { path: own }];
        }
        let users = fs::read_dir(own.parent().unwrap_or(&own));
        let root = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let uid: u32 = name.strip_prefix(OWN)?.parse().ok()?;
            let path = entry.path();
            let is_theirs = fs::symlink_metadata(&path).is_ok_and(|about| about.uid() == uid);
            is_theirs.then_some(Self { path })
        };
        let users = users.into_iter().flatten().flatten();
        users.filter_map(root).collect()
    }

    /// Finds the root of the group `name`: [`SYSTEM`] if it has the group's topmost directory and
    /// `GPULIMIT_ROOT` is not set, else as [`Root::locate`].
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

    /// Returns the roots to search for groups: `GPULIMIT_ROOT` alone if set, else [`SYSTEM`] and
    /// the caller's own root.
    pub fn locate_all(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<Self>, GroupError> {
        let own = Self::locate(env)?;
        let system = Path::new(SYSTEM);
        if env("GPULIMIT_ROOT").is_none() && own.path != system && is_directory(system) {
            return Ok(vec![Self::at(system)?, own]);
        }
        Ok(vec![own])
    }

    /// Returns the root at this path, with the same checks as [`Root::locate`]. For the user root,
    /// the secret view of a job is the root that holds the job.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, GroupError> {
        let mut path = path.into();
        if user::effective() == 0
            && let Some(secret) = path.parent().filter(|above| above.ends_with(SECRET))
            && let Some(root) = secret.parent()
        {
            path = root.into();
        }
        let root = Self { path };
        match root.modes() {
            Err(error) if is_not_found(&error) => Ok(root),
            checked => checked.map(|_| root),
        }
    }

    /// Returns the path of the root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the root's directory exists.
    pub fn exists(&self) -> bool {
        is_directory(&self.path)
    }

    /// Returns the groups of [`Root::list`] by name, each before the groups below it.
    pub fn groups(&self) -> Result<Vec<Group>, GroupError> {
        self.list(None).map(|listing| listing.groups)
    }

    /// Lists the readable groups below `within` or the root, top down. Reads at most
    /// [`MAX_USER_NAMES`](super::MAX_USER_NAMES) names below a user's directory.
    pub fn list(&self, within: Option<&Group>) -> Result<Listing, GroupError> {
        self.listing(within, Reach::All, &mut has_limits)
    }

    /// Lists all readable groups as [`Root::list`] does. Passes the limits of each to `see`, unless
    /// its limits file is faulty or cannot be read.
    pub fn list_and_read(
        &self,
        see: &mut dyn FnMut(&Group, LimitSet),
    ) -> Result<Listing, GroupError> {
        let mut keep = |group: &Group, there: &io::Result<Directory>| {
            let read = |file: &File| {
                let limits = Limits::read_file(file);
                limits.map(|limits| see(group, limits)).is_some()
            };
            let there = there.as_ref();
            there.is_ok_and(|there| contents::has_limits(there, read))
        };
        self.listing(None, Reach::All, &mut keep)
    }

    /// Returns the child groups of `parent`, or the groups at the top of the root, sorted by name.
    pub fn groups_below(&self, parent: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let listing = self.listing(parent, Reach::Next, &mut has_limits);
        listing.map(|listing| listing.groups)
    }

    /// Returns the directories that could hold groups, below `group` or in the whole root, with the
    /// bounds of [`Root::list`].
    pub fn directories_below(&self, group: Option<&Group>) -> Result<Listing, GroupError> {
        self.listing(group, Reach::All, &mut |_, _| true)
    }

    /// Does the same as [`Root::directories_below`] for the directories directly below `parent`.
    pub(super) fn directories_in(&self, parent: Option<&Group>) -> Result<Vec<Group>, GroupError> {
        let listing = self.listing(parent, Reach::Next, &mut |_, _| true);
        listing.map(|listing| listing.groups)
    }

    /// Lists the directories below `parent` that `keep` accepts.
    fn listing(
        &self,
        parent: Option<&Group>,
        reach: Reach,
        keep: &mut Keep<'_>,
    ) -> Result<Listing, GroupError> {
        let mut walk = Walk {
            root: &self.path,
            reach,
            keep,
            budget: None,
            plain: None,
            listing: Listing::default(),
        };
        let (path, prefix) = match parent {
            Some(parent) => (parent.below_path(), format!("{}/", parent.name)),
            None => (self.path.clone(), String::new()),
        };
        let here = match parent {
            Some(parent) => self.open_below(parent),
            None => Directory::open(&self.path),
        };
        let failed = |error| GroupError::io("list", &path, error);
        let here = match here {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(walk.listing),
            // A user has replaced the directory of groups by a symbolic link or a file.
            Err(error) if error.kind() == ErrorKind::NotADirectory && parent.is_some() => {
                return Ok(walk.listing);
            }
            here => here.map_err(failed)?,
        };
        walk.list(&here, &prefix).map_err(failed)?;
        Ok(walk.listing)
    }

    /// Opens the directory of `group`'s child groups. Follows no links on the way from the root.
    fn open_below(&self, group: &Group) -> io::Result<Directory> {
        let mut here = Directory::open(&self.path)?;
        for part in group.name.split('/') {
            here = here.open_directory(part)?.open_directory(BELOW)?;
        }
        Ok(here)
    }

    /// Returns the group called `name`. Fails with [`GroupError::Missing`] where the group does not
    /// exist.
    pub fn group(&self, name: &str) -> Result<Group, GroupError> {
        name::check(name)?;
        let group = Group::at(&self.path, name);
        // Check all directories on the path: a user who could replace one of them could put another
        // group in the group's place.
        for directory in group.directories().skip(1) {
            let about = fs::symlink_metadata(&directory);
            if about.is_ok_and(|about| about.is_dir() || about.is_symlink()) {
                check(&directory)?;
            }
        }
        // `Path::exists` cannot tell a missing file from a file that the caller may not see.
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

    /// Builds the error for a missing group. The preloaded library must not list other users'
    /// directories, so no names are added.
    pub(super) fn missing(&self, name: &str) -> GroupError {
        GroupError::Missing {
            name: name.into(),
            root: self.path.clone(),
            known: None,
        }
    }

    /// Makes a group with these limits, or keeps an existing group's limits. The parent group must
    /// exist. The returned [`Created`] prevents a removal.
    pub fn create(&self, name: &str, limits: &LimitSet) -> Result<Created, GroupError> {
        self.create_for(name, limits, Access::default())
    }

    /// Does the same as [`Root::create`], and lets the users of `access` run programs in the group.
    pub fn create_for(
        &self,
        name: &str,
        limits: &LimitSet,
        access: Access,
    ) -> Result<Created, GroupError> {
        let created = self.create_alone(name, limits, access)?;
        self.make_trail(&created.group);
        Ok(created)
    }

    /// Does the same as [`Root::create_for`], but makes no trail in the root.
    pub(super) fn create_alone(
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
            // A new group inherits `count_context=no`: contexts are charged unless all groups have
            // this option.
            let above = self.group(parent.name())?.limits()?.options();
            limits.options.count_context &= above.count_context;
        }
        // Another process may remove the directory, so try again. Limit the attempts: on procfs,
        // all of them fail.
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
            // If this removal fails as well, a later clean-up removes the incomplete group.
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
        // In a directory such as `/dev/shm` another user may have made the group since the first
        // check.
        check_delegation(group.name(), place.user(), access)?;
        group.check_content()?;
        group.make_lock(&place.directory, access)?;
        let hold = group.hold_in(&place.directory)?;
        let new = group.fill(place, limits, access, modes)?;
        let group = group.clone();
        Ok(Created { group, new, hold })
    }

    /// Does the same as [`Group::past_leases`] for a group that may not exist yet.
    pub fn past_leases<T>(
        &self,
        name: &str,
        until: Instant,
        act: impl FnMut() -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        Group::at(&self.path, name).past_leases(until, act)
    }

    /// Checks that a group can be given to `owner`. Fails if a child group belongs to another user.
    pub fn check_owner(&self, group: &Group, owner: u32) -> Result<(), GroupError> {
        for below in self.directories_in(Some(group))? {
            let about = fs::symlink_metadata(below.path());
            let whose = about.map_err(|error| below.failed("open", error))?.uid();
            if whose != owner {
                return Err(GroupError::OwnedBelow {
                    name: group.name.clone(),
                    below: below.name,
                    owner: whose,
                });
            }
        }
        Ok(())
    }

    /// Makes the root's directory if it does not exist. If the user root makes the directory, all
    /// users may read it.
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

    /// Locks a file of the root exclusively, and makes a missing file. Fails with `WouldBlock`
    /// while the file is locked.
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

    /// Returns whether all users can find groups here: root owns the directory, and all users may
    /// read it.
    pub fn is_public(&self) -> bool {
        match self.modes() {
            Ok(modes) => modes == PUBLIC,
            Err(error) => is_not_found(&error) && self.is_system_root(),
        }
    }

    /// Makes the root's directory; in a user's directory, with that user's rights. Returns `false`
    /// if the name is taken.
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

    /// Returns whether this is the root for all users of the machine and the caller may make it.
    fn is_system_root(&self) -> bool {
        user::effective() == 0 && self.path == Path::new(SYSTEM)
    }

    /// Makes the root's directory if it does not exist, and checks it.
    fn ensure(&self) -> Result<Modes, GroupError> {
        if !self.exists() {
            let mode = match user::effective() {
                0 if self.is_system_root() => PUBLIC.directory,
                // Programs of root that become other users must reach their job's secret view.
                0 if self.path == own_default() => 0o711,
                _ => PRIVATE.directory,
            };
            self.make_directory(mode)?;
        }
        file_system::check(&self.path)?;
        self.modes()
    }

    /// Checks the root's directory, and returns the permissions for directories and limits files in
    /// it.
    fn modes(&self) -> Result<Modes, GroupError> {
        let about = check(&self.path)?;
        // `check` lets the user root use any directory, but a default root must be its user's own.
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

/// Returns the default root of the calling user.
fn own_default() -> PathBuf {
    format!("/dev/shm/{OWN}{}", user::effective()).into()
}

/// Returns whether making the first group would make [`SYSTEM`]: the caller is the user root, and
/// [`SYSTEM`] does not exist yet.
fn makes_system_root() -> bool {
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

/// Refuses to make a group for one user in another user's directory.
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

/// Returns whether an open directory has a group's limits file, as far as the caller can see.
fn has_limits(_: &Group, directory: &io::Result<Directory>) -> bool {
    let directory = directory.as_ref();
    directory.is_ok_and(|directory| contents::has_limits(directory, |_| false))
}

/// Says which directories are listed. Gets the group that a directory could hold, and the open
/// directory, or the error.
type Keep<'a> = dyn FnMut(&Group, &io::Result<Directory>) -> bool + 'a;

/// A listing that is being made.
struct Walk<'a> {
    root: &'a Path,
    reach: Reach,
    keep: &'a mut Keep<'a>,
    budget: Budget,
    /// The number of the last device that was found to have an ordinary file system, whose numbers
    /// of links count directories.
    plain: Option<u64>,
    listing: Listing,
}

impl Walk<'_> {
    /// Lists the directories in `here`. The names of their groups begin with `prefix`.
    fn list(&mut self, here: &Directory, prefix: &str) -> io::Result<()> {
        let (outer, cut_before) = (self.budget, self.listing.cut_short.len());
        for part in Root::names(here, &mut self.listing.cut_short, &mut self.budget)? {
            let Some(part) = part.to_str().filter(|part| name::is_part(part)) else {
                continue;
            };
            let there = here.open_directory(part);
            let is_directory = || {
                let entry = here.entry(part).ok().flatten();
                entry.is_some_and(|entry| entry.kind == EntryKind::Directory)
            };
            if there.is_err() && !is_directory() {
                continue;
            }
            let group = Group::at(self.root, &format!("{prefix}{part}"));
            let below_prefix = format!("{}/", group.name);
            let is_deepest = group.name.split('/').count() >= super::MAX_DEPTH;
            if (self.keep)(&group, &there) {
                self.listing.groups.push(group);
            }
            if self.reach == Reach::All
                && !is_deepest
                && let Ok(there) = there
                && !there.is_empty_below(BELOW, &mut self.plain)
                && let Ok(below) = there.open_directory(BELOW)
            {
                // If the caller cannot read the directory, its groups are left out.
                let _ = self.list(&below, &below_prefix);
            }
        }
        // The budget ends with this user's directory. Report the directory once, even if several
        // listings were cut short.
        if outer.is_none() && self.budget.is_some() {
            self.budget = None;
            self.listing.cut_short.truncate(cut_before + 1);
        }
        Ok(())
    }
}

/// Which directories a listing contains.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Reach {
    /// Only the directories directly below the one where the listing starts.
    Next,
    /// The directories at all levels below the one where the listing starts.
    All,
}

/// The groups of a root that could be read.
#[derive(Debug, Default)]
pub struct Listing {
    /// The groups by name, each before the groups below it.
    pub groups: Vec<Group>,
    /// The directories of other users that have more names than gpulimit reads there.
    pub cut_short: Vec<PathBuf>,
}

/// A new or existing group that other processes cannot remove before this value is dropped.
#[derive(Debug)]
pub struct Created {
    /// The group.
    pub group: Group,
    /// Whether the group is new. A group that existed before keeps its own limits.
    pub new: bool,
    /// The lock that keeps the group from being removed.
    pub hold: Hold,
}

impl Group {
    /// Checks that the directory holds only files that gpulimit has made, so that a group can be
    /// made in the directory.
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

/// Makes a directory with exactly these permissions. Keeps an existing directory, or fails if that
/// directory is unsafe.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), GroupError> {
    let failed = |error| GroupError::io("create", path, error);
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check(path).map(|_| ()),
        Err(error) => Err(failed(error)),
    }
}

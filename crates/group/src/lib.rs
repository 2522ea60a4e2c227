//! Groups on disk: each group is a directory below a root directory.
//!
//! ```text
//! lab/limits        the limits of the group; the file's owner administers the group
//! lab/ledger        the charges of its processes; a user who may write the file can be a member
//! lab/lock          a joining process locks the file shared, a removal locks it exclusively; only
//!                   users who may be members can open the file
//! lab/sub/          the child groups, such as `lab/alice` in `lab/sub/alice`; the owner of the
//!                   directory may make child groups
//! ```
//! The ownership of these files is the permission model. A user may own `sub`, but not the group's
//! own directory, where the user could replace the group's files.

mod access;
mod admission;
mod at_limit;
mod carriers;
mod contents;
mod context_size;
mod demand;
mod descent;
mod directory;
mod drafts;
mod entry;
mod error;
mod hold;
mod images;
mod job;
mod look;
mod member;
mod name;
mod oom;
mod past;
pub mod pod;
mod power;
mod protection;
mod proven;
mod removal;
mod root;
mod signals;
pub mod system_log;
mod trail;
mod trial;
mod trust;
mod undisturbed;
mod user;
mod view;

pub use access::{Access, Members};
pub use at_limit::Insistence;
pub use demand::{Demanded, Told};
pub use directory::{Directory, Entry, EntryKind};
pub use entry::{job_key, job_of};
pub use error::{Fault, GroupError, WithoutCreateHint};
pub use hold::Hold;
pub use images::ImageKey;
pub use job::JobState;
pub use member::{Holder, MAX_DEPTH, Member, MemberDevice, Refusal};
pub use name::{Kind, check as check_name, is_within, last as last_name, parent, upwards};
pub use power::{Lowered, Rights};
pub use proven::{Look, Target, Targets};
pub use removal::{MAX_USER_NAMES, Survey};
pub use root::{Created, Listing, Root, SYSTEM};
pub use undisturbed::{Errno, Undisturbed};
pub use user::effective as effective_user;

use descent::Descent;
use gpulimit_ledger::{DeviceEntry, Ledger, child_key};
use gpulimit_limits::{LimitSet, Limits};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The subdirectory of a group's directory that holds the group's child groups.
const BELOW: &str = "sub";
/// The names of a group's files in its directory.
const LIMITS: &str = "limits";
const LEDGER: &str = "ledger";
const LOCK: &str = "lock";
/// The name of the file that writers of the group's limits lock.
const LIMITS_LOCK: &str = ".limits.lock";
/// The name of the file that records the process for which a job's group was made.
const JOB: &str = "job";
/// The most drafts of a group whose leases gpulimit awaits, because a user can make any number of
/// drafts.
const MAX_DRAFTS: usize = 64;

/// A group on disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    name: String,
    path: PathBuf,
    root: PathBuf,
}

impl Group {
    fn at(root: &Path, name: &str) -> Self {
        let mut path = root.to_path_buf();
        for (depth, part) in name.split('/').enumerate() {
            if depth > 0 {
                path.push(BELOW);
            }
            path.push(part);
        }
        Self {
            name: name.into(),
            path,
            root: root.into(),
        }
    }

    /// Returns the group's name, which begins with the names of the groups above it: `lab/alice`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the group's kind, which says how long the group stays.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.name)
    }

    /// Returns the root that the group is in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the group's limits file.
    pub fn limits_path(&self) -> PathBuf {
        self.path.join(LIMITS)
    }

    /// Returns the path of the group's ledger.
    pub fn ledger_path(&self) -> PathBuf {
        self.path.join(LEDGER)
    }

    /// Returns the directory that holds this group's child groups.
    pub fn below_path(&self) -> PathBuf {
        self.path.join(BELOW)
    }

    fn lock_path(&self) -> PathBuf {
        self.path.join(LOCK)
    }

    /// Iterates over this group and all groups above it, from this group upwards.
    pub fn upwards(&self) -> impl Iterator<Item = Self> + '_ {
        name::upwards(&self.name).map(|name| Self::at(&self.root, name))
    }

    /// Returns the parent group; `None` for a group at the top of the root.
    pub fn parent(&self) -> Option<Self> {
        name::parent(&self.name).map(|name| Self::at(&self.root, name))
    }

    /// Iterates over the directories on the path to the group's files, from the root downwards.
    fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let mut upwards = vec![self.path.clone()];
        for above in self.upwards().skip(1) {
            upwards.extend([above.below_path(), above.path]);
        }
        upwards.push(self.root.clone());
        upwards.into_iter().rev()
    }

    /// Opens the group's limits for reading.
    pub fn limits(&self) -> Result<Limits, GroupError> {
        Ok(Limits::open(&self.limits_path())?)
    }

    /// Reads all rules and options of the group's limits once.
    pub fn rules(&self) -> Result<LimitSet, GroupError> {
        Ok(Limits::read(&self.limits_path())?)
    }

    /// Changes the group's limits. The change takes effect at once for programs that run in the
    /// group.
    pub fn write_limits(&self, change: impl FnOnce(&mut LimitSet)) -> Result<LimitSet, GroupError> {
        let _power = Lowered::to_owner_of(self)?;
        let mut before = false;
        let now = Limits::write(&self.limits_path(), |set| {
            before = set.protects();
            change(set);
        })?;
        if before || now.protects() {
            self.notify_parent();
        }
        self.bound_rooms();
        Ok(now)
    }

    /// Lowers what the groups above keep for this job, or for the jobs below this group, to the
    /// group's limits. Without write access, they keep it until the job ends.
    fn bound_rooms(&self) {
        let Ok(limits) = self.limits() else {
            return;
        };
        let max = |device: &DeviceEntry| limits.bounds(&device.id, device.capacity).max;
        let root = Root {
            path: self.root.clone(),
        };
        let below = root
            .list(Some(self))
            .map_or(Vec::new(), |listing| listing.groups);
        let jobs = || {
            below
                .iter()
                .chain([self])
                .filter(|group| group.kind() == Kind::Job)
        };
        for above in self.upwards().skip(1) {
            if let Ok(ledger) = Ledger::open(&above.ledger_path()) {
                jobs().for_each(|job| ledger.bound_rooms(child_key(&job.name), max));
            }
        }
    }

    /// Tells the members of the parent group about changed protection. Without write access,
    /// members notice the change later.
    fn notify_parent(&self) {
        if let Some(parent) = self.parent()
            && let Ok(ledger) = Ledger::open(&parent.ledger_path())
        {
            ledger.children_changed();
        }
    }

    /// Opens the group's ledger for reading.
    pub fn ledger(&self) -> Result<Ledger, GroupError> {
        Ok(Ledger::open_readonly(&self.ledger_path())?)
    }

    /// Runs `act`, and retries until `until` while another program leases a file of the groups.
    /// Starts threads: not for the preloaded library.
    pub fn past_leases<T>(
        &self,
        until: Instant,
        act: impl FnMut() -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        self.past(false, until, act)
    }

    /// Does the same as [`Group::past_leases`] for an `act` that opens only the group's ledger.
    pub fn past_lease_on_ledger<T>(
        &self,
        until: Instant,
        act: impl FnMut() -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        self.past(true, until, act)
    }

    fn past<T>(
        &self,
        only_ledger: bool,
        until: Instant,
        mut act: impl FnMut() -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        match act() {
            Err(error) if error.is_leased() => {
                // Keep the files open while `act` runs, because the kernel grants no new lease on
                // an open file.
                let _open = self.await_leases(only_ledger, until)?;
                act()
            }
            done => done,
        }
    }

    /// Opens the files of the group and of the groups above it, or only its ledger. Waits until
    /// `until` for leases to end.
    fn await_leases(&self, only_ledger: bool, until: Instant) -> Result<Vec<File>, GroupError> {
        let mut openings = Vec::new();
        let levels = if only_ledger { 1 } else { MAX_DEPTH };
        for group in self.upwards().take(levels) {
            let Ok(Descent { directory, .. }) = &Descent::to(&group) else {
                continue;
            };
            let drafts = directory.names().into_iter().flatten().flatten();
            let drafts = drafts.filter(|name| contents::has_draft_name(name));
            let names = [LIMITS, LIMITS_LOCK, LEDGER, LOCK, JOB].map(OsString::from);
            let names = names.into_iter().chain(drafts.take(MAX_DRAFTS));
            for name in names.filter(|name| !only_ledger || name == LEDGER) {
                if let Ok(opening) = directory.begin_open(&name) {
                    openings.push((directory.path().join(name), opening));
                }
            }
        }
        // Keep the opened files open: a program could lease two files in turns.
        let mut open = Vec::new();
        for (path, opening) in openings {
            match opening.finish(until) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(GroupError::leased(&path));
                }
                file => open.extend(file),
            }
        }
        Ok(open)
    }

    /// Returns whether an open ledger is this group's file, and not another group's. Fails if
    /// gpulimit did not make all hard links to the file.
    pub fn owns(&self, ledger: &Ledger) -> Result<bool, GroupError> {
        let failed = |error| self.failed("open", error);
        let open = ledger.metadata().map_err(failed)?;
        let place = Descent::to(self)?;
        let owner = place.directory.about().map_err(failed)?.uid();
        let there = place.directory.entry(LEDGER).map_err(failed)?;
        let is_there = |there: &Entry| there.id == (open.dev(), open.ino());
        // Restore the rights of root, which are needed to read the containers' views of the group.
        drop(place);
        match there {
            Some(there) if is_there(&there) && owner == 0 => Ok(true),
            Some(there) if is_there(&there) && owner == open.uid() => {
                let is_own = owner == user::effective() || self.is_only_ledger(ledger)?;
                is_own.then_some(true).ok_or_else(|| {
                    let why = format!(
                        "the file has {} names (hard links), so it may be the ledger of another \
                         group; remove the other names: `find {} -samefile {}` lists them, and \
                         `gpulimit gc` removes those that killed programs left \
                         (.ledger.PID.N.new)",
                        there.links,
                        self.root.display(),
                        self.ledger_path().display()
                    );
                    GroupError::io("use", &self.ledger_path(), io::Error::other(why))
                })
            }
            _ => Ok(false),
        }
    }

    /// Keeps the group from being removed until the returned value is dropped.
    pub fn hold(&self) -> Result<Hold, GroupError> {
        self.held(Hold::with_others(&self.lock_path()))
    }

    /// Does the same as [`Group::hold`] in the open directory `here`. Fails with
    /// [`GroupError::Missing`] if `here` was removed.
    fn hold_in(&self, here: &Directory) -> Result<Hold, GroupError> {
        self.held(Hold::with_others_in(here, LOCK))
    }

    fn held(&self, held: io::Result<Hold>) -> Result<Hold, GroupError> {
        held.map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.missing(),
            ErrorKind::TimedOut => GroupError::Held {
                path: self.path.clone(),
            },
            _ => self.failed("open", error),
        })
    }

    /// Builds the error for a group that does not exist.
    fn missing(&self) -> GroupError {
        GroupError::Missing {
            name: self.name.clone(),
            root: self.root.clone(),
            known: None,
        }
    }

    /// Builds the error for a group in which a program runs or which a program is just joining.
    fn in_use(&self) -> GroupError {
        GroupError::InUse {
            name: self.name.clone(),
        }
    }

    /// Builds the error for a system call that failed in the group's directory.
    fn failed(&self, what: &'static str, error: io::Error) -> GroupError {
        GroupError::io(what, &self.path, error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

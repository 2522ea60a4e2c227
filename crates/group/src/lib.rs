//! Groups on disk: a directory each, below a root.
//!
//! ```text
//! lab/limits        what the group may use; its owner administers the group
//! lab/ledger        who uses what; who may write it can be a member
//! lab/lock          held by those who are coming in, and by who removes the group; opened by members only
//! lab/sub/          the groups below it, `lab/alice` in `lab/sub/alice`; its owner may make some
//! ```
//! The ownership of these files is the permission model. The groups below are in a directory of
//! their own so that it can belong to a user: in the directory of the group itself he could replace
//! the files.

mod access;
mod admission;
mod at_limit;
mod contents;
mod context_size;
mod descent;
mod directory;
mod drafts;
mod error;
mod hold;
mod job;
mod kill;
mod look;
mod member;
mod name;
mod power;
mod protection;
mod removal;
mod root;
mod signals;
mod trial;
mod trust;
mod undisturbed;
mod user;
mod view;

pub use access::{Access, Members};
pub use at_limit::Insistence;
pub use directory::{Directory, Entry, EntryKind};
pub use error::{Fault, GroupError, NotToBeMade};
pub use hold::Hold;
pub use job::JobState;
pub use kill::{Look, Target, Targets};
pub use member::{Holder, MAX_DEPTH, Member, MemberDevice, Refusal};
pub use name::{Kind, check as check_name, is_within, last as last_name, parent, upwards};
pub use power::{Lowered, Rights};
pub use removal::{Garbage, MOST_OF_A_USER, Survey};
pub use root::{Created, Root, SYSTEM};
pub use undisturbed::Undisturbed;
pub use user::effective as effective_user;

use descent::Descent;
use gpulimit_ledger::Ledger;
use gpulimit_limits::{LimitSet, Limits};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The directory of the groups below a group, in its own.
const BELOW: &str = "sub";
/// The files of a group in its directory.
const LIMITS: &str = "limits";
const LEDGER: &str = "ledger";
const LOCK: &str = "lock";
/// Locked by those who write the limits.
const LIMITS_LOCK: &str = ".limits.lock";
/// Names the process that a job's group was made for.
const JOB: &str = "job";
/// Drafts in one group whose leases are waited for: a user can make any number of them.
const MOST_DRAFTS: usize = 64;

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

    /// Its name, with those of the groups above it: `lab/alice`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long it stays.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.name)
    }

    /// The root that it is in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its limits file.
    pub fn limits_path(&self) -> PathBuf {
        self.path.join(LIMITS)
    }

    /// Its ledger.
    pub fn ledger_path(&self) -> PathBuf {
        self.path.join(LEDGER)
    }

    /// The directory of the groups below it.
    pub fn below_path(&self) -> PathBuf {
        self.path.join(BELOW)
    }

    fn lock_path(&self) -> PathBuf {
        self.path.join(LOCK)
    }

    /// The group and all above it, from itself upwards.
    pub fn upwards(&self) -> impl Iterator<Item = Self> + '_ {
        name::upwards(&self.name).map(|name| Self::at(&self.root, name))
    }

    /// The group that it is directly below; `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        name::parent(&self.name).map(|name| Self::at(&self.root, name))
    }

    /// The directories on the way to its files, from the root downwards.
    fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let mut upwards = vec![self.path.clone()];
        for above in self.upwards().skip(1) {
            upwards.extend([above.below_path(), above.path]);
        }
        upwards.push(self.root.clone());
        upwards.into_iter().rev()
    }

    /// Opens its limits for reading.
    pub fn limits(&self) -> Result<Limits, GroupError> {
        Ok(Limits::open(&self.limits_path())?)
    }

    /// Changes its limits, for programs that run in it as for those that will.
    pub fn write_limits(&self, change: impl FnOnce(&mut LimitSet)) -> Result<LimitSet, GroupError> {
        let _power = Lowered::to_owner_of(self)?;
        let mut before = false;
        let now = Limits::write(&self.limits_path(), |set| {
            before = set.protects();
            change(set);
        })?;
        if before || now.protects() {
            self.tell_parent();
        }
        Ok(now)
    }

    /// Lets the members of the group above see that this one is protected, or no longer. Where its
    /// ledger is not ours to write they see it a little later.
    fn tell_parent(&self) {
        if let Some(parent) = self.parent()
            && let Ok(ledger) = Ledger::open(&parent.ledger_path())
        {
            ledger.children_changed();
        }
    }

    /// Opens its ledger for looking only.
    pub fn ledger(&self) -> Result<Ledger, GroupError> {
        Ok(Ledger::open_readonly(&self.ledger_path())?)
    }

    /// Runs `act`. Where another program's lease (`F_SETLEASE`) on a file of the group, or of one
    /// above it, keeps `act` from its work, waits until `until` for the leases' end and runs `act`
    /// once more.
    ///
    /// For administrators, whom a lease must not keep from changing or removing a group; not for
    /// the library, as it starts threads.
    pub fn past_leases<T>(
        &self,
        until: Instant,
        mut act: impl FnMut() -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        match act() {
            Err(error) if error.is_leased() => {
                // No program gets a new lease on a file that is open.
                let _open = self.await_leases(until)?;
                act()
            }
            done => done,
        }
    }

    /// Opens the files of the group and of those above it, and waits until `until` while there are
    /// leases on them. Files that cannot be opened for another reason are left out.
    fn await_leases(&self, until: Instant) -> Result<Vec<File>, GroupError> {
        let mut open = Vec::new();
        for group in self.upwards() {
            let Ok(Descent { directory, .. }) = &Descent::to(&group) else {
                continue;
            };
            let drafts = directory.names().into_iter().flatten().flatten();
            let drafts = drafts.filter(|name| contents::has_draft_name(name));
            let names = [LIMITS, LIMITS_LOCK, LEDGER, LOCK, JOB].map(OsString::from);
            let names: Vec<_> = names.into_iter().chain(drafts.take(MOST_DRAFTS)).collect();
            // Each of these attempts makes a lease end, so that all end at the same time.
            for name in &names {
                drop(directory.open_file(name, true));
            }
            for name in names {
                match directory.open_leased(&name, until) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return Err(GroupError::leased(&directory.path().join(name)));
                    }
                    file => open.extend(file),
                }
            }
        }
        Ok(open)
    }

    /// Whether an open ledger is this group's own. In a directory of theirs a user can have put a
    /// link in its place: to the ledger of a group whose processes are not theirs.
    #[cfg(not(all(test, loom)))]
    pub fn owns(&self, ledger: &Ledger) -> Result<bool, GroupError> {
        let failed = |error| self.failed("open", error);
        let open = ledger.metadata().map_err(failed)?;
        let place = Descent::to(self)?;
        let owner = place.directory.about().map_err(failed)?.uid();
        let there = place.directory.entry(LEDGER).map_err(failed)?;
        Ok((owner == 0 || owner == open.uid())
            && there.is_some_and(|there| there.id == (open.dev(), open.ino())))
    }

    /// Keeps the group from being removed until the answer is dropped.
    pub fn hold(&self) -> Result<Hold, GroupError> {
        self.held(Hold::with_others(&self.lock_path()))
    }

    /// As [`Group::hold`], but holds what is in this directory of the group;
    /// [`GroupError::Missing`] where that was removed, also if another directory has its name by
    /// now.
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

    /// The error where the group, or a directory on the way to it, does not exist (any longer).
    fn missing(&self) -> GroupError {
        GroupError::Missing {
            name: self.name.clone(),
            root: self.root.clone(),
            known: Vec::new(),
        }
    }

    /// The error where a program runs in the group, or is coming in.
    fn in_use(&self) -> GroupError {
        GroupError::InUse {
            name: self.name.clone(),
        }
    }

    /// The error of a system call in the group's directory.
    fn failed(&self, what: &'static str, error: io::Error) -> GroupError {
        GroupError::io(what, &self.path, error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! Records of ended jobs. When the group of a job is removed, its limits and the history in its
//! ledger are copied into a group without members, in the directory `.trail-jobs` of the root.
//!
//! Only jobs at the top of a root get such a record. Other jobs have used memory of a group above,
//! and the history of that group shows it.

use super::{Group, GroupError, Kind, Root, user};
use gpulimit_base::order;
use gpulimit_ledger::{Ledger, NoWitness};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The name of the directory, which begins as that of the root's trail.
const PAST: &str = ".trail-jobs";
/// The most jobs of which something is kept, and for how long.
const MOST: usize = 16;
const LONGEST: Duration = Duration::from_secs(86_400);

impl Root {
    /// Returns the root of the groups that jobs of this root have left. Refuses a directory that
    /// other users could tamper with, as [`Root::at`] does.
    pub fn past(&self) -> Result<Self, GroupError> {
        Self::at(self.path.join(PAST))
    }

    /// Keeps what the ledger of a job's group tells of the past; the caller removes the group.
    /// Failures are ignored: a job that leaves nothing is removed like any other.
    pub(super) fn keep_past(&self, group: &Group, ledger: &Ledger) {
        let owner = fs::symlink_metadata(&self.path).map(|about| about.uid());
        let is_own = owner.is_ok_and(|owner| owner == user::effective());
        let is_job = group.kind() == Kind::Job && group.parent().is_none() && !group.is_past();
        if !is_own || !is_job || !ledger.keeps_history() {
            return;
        }
        group.clean_in(ledger, &NoWitness);
        if ledger.last_recorded().is_some()
            && let Ok(past) = self.past()
        {
            past.drop_old(MOST - 1);
            let left = Group::at(&past.path, group.name());
            // A process of the job may have made its group again after an earlier removal.
            let _ = past.forget(&left);
            if past.copy(group, ledger, &left).is_err() {
                let _ = past.forget(&left);
            }
        }
    }

    fn copy(&self, group: &Group, ledger: &Ledger, to: &Group) -> Result<(), GroupError> {
        // The copy has the permissions of the ledger: they say who can have written its figures.
        let made = self.create_alone(to.name(), &group.rules()?, group.access()?)?;
        Ok(ledger.copy_past(&made.group.ledger_path())?)
    }

    /// Removes the groups in this root of the past that are too old, and all but the newest `most`.
    fn drop_old(&self, most: usize) {
        let groups = self.directories_in(None).unwrap_or_default().into_iter();
        let aged = groups.filter_map(|group| {
            let made = fs::symlink_metadata(group.path()).and_then(|about| about.modified());
            // The clock may have been set back.
            Some((made.ok()?.elapsed().unwrap_or_default(), group))
        });
        let mut aged: Vec<_> = aged.collect();
        order::sort_by(&mut aged, |(one, _), (other, _)| one < other);
        for (at, (age, group)) in aged.into_iter().enumerate() {
            if at >= most || age > LONGEST {
                let _ = self.forget(&group);
            }
        }
    }

    /// Removes what jobs have left and is no longer kept.
    pub(super) fn drop_old_past(&self) {
        if let Ok(past) = self.past() {
            past.drop_old(MOST);
        }
    }

    fn forget(&self, left: &Group) -> Result<(), GroupError> {
        self.remove_if(left, |_| true, |_| true)
    }
}

impl Group {
    /// Lets the new group of a job at the top of a root keep a history, as named groups do.
    pub fn keep_history(&self) -> Result<(), GroupError> {
        if self.parent().is_none() {
            Ledger::open(&self.ledger_path())?.keep_history();
        }
        Ok(())
    }

    /// Returns whether this is what a job has left, not a group that programs can join.
    pub fn is_past(&self) -> bool {
        self.root.ends_with(PAST)
    }

    /// Returns the root in which the group is, or was before it was removed.
    pub fn home(&self) -> &Path {
        match self.root.parent() {
            Some(home) if self.is_past() => home,
            _ => &self.root,
        }
    }
}

//! The protection (`min` and `low`) of a group's child groups, as a member of the group reads it.

use super::{Group, name};
use gpulimit_ledger::{DeviceIndex, Ledger, Protection, child_key};
use gpulimit_limits::Limits;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The child groups that have protected memory. Their parent is the process's own group or a group
/// above it.
pub(super) struct ProtectedGroups {
    /// The directory that holds the child groups.
    below: PathBuf,
    /// The key of the child group of this process, whose protection does not limit the process; 0
    /// if none.
    own: u64,
    /// The value of [`Ledger::children`] at the last read of `groups`, plus 1; 0 before the first
    /// read.
    read_at: AtomicU64,
    /// Whether any of the child groups has protected memory.
    any: AtomicBool,
    groups: Mutex<Vec<(u64, Limits)>>,
}

impl ProtectedGroups {
    /// Prepares to read the child groups of `group` for a process of the group `leaf`, which is
    /// `group` or below it.
    pub(super) fn of(group: &Group, leaf: &str) -> Self {
        let below = leaf.get(group.name().len() + 1..).unwrap_or_default();
        let own = name::upwards(below).last().filter(|own| !own.is_empty());
        Self {
            below: group.below_path(),
            own: own.map_or(0, child_key),
            read_at: AtomicU64::new(0),
            any: AtomicBool::new(false),
            groups: Mutex::default(),
        }
    }

    /// Returns the protection of the child groups; `None` where none of them has protected memory.
    /// Costs two loads.
    #[inline]
    pub(super) fn protection(&self, ledger: &Ledger) -> Option<&dyn Protection> {
        if self.read_at.load(Ordering::Acquire) != ledger.children().wrapping_add(1) {
            self.read(ledger);
        }
        self.any.load(Ordering::Relaxed).then_some(self)
    }

    /// Returns the bytes that the child group with this key has charged above its protection;
    /// `u64::MAX` for a group without protection, and for this process's own.
    pub(super) fn above(&self, ledger: &Ledger, device: DeviceIndex, child: u64) -> u64 {
        let protects = self.protection(ledger).is_some();
        let Some(entry) = ledger.device_entry(device).filter(|_| protects) else {
            return u64::MAX;
        };
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = groups.iter().find(|(key, _)| *key == child);
        limits.map_or(u64::MAX, |(_, limits)| {
            let bounds = limits.bounds(&entry.id, entry.capacity);
            let taken = ledger.taken(device, child);
            taken.saturating_sub(bounds.min.max(bounds.low))
        })
    }

    /// Reads which of the child groups have protected memory. A child group whose limits cannot be
    /// read counts as unprotected.
    #[cold]
    fn read(&self, ledger: &Ledger) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let now = ledger.children().wrapping_add(1);
        groups.clear();
        for entry in fs::read_dir(&self.below).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let key = child_key(&name);
            if key == self.own {
                continue;
            }
            if let Ok(limits) = Limits::open(&entry.path().join("limits"))
                && limits.rules().is_ok_and(|rules| rules.protects())
            {
                groups.push((key, limits));
            }
        }
        self.any.store(!groups.is_empty(), Ordering::Relaxed);
        self.read_at.store(now, Ordering::Release);
    }
}

impl Protection for ProtectedGroups {
    fn untaken(&self, ledger: &Ledger, device: DeviceIndex, low: bool) -> u64 {
        let Some(entry) = ledger.device_entry(device) else {
            return 0;
        };
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let protected = groups.iter().map(|(child, limits)| {
            let bounds = limits.bounds(&entry.id, entry.capacity);
            let bytes = if low {
                bounds.min.max(bounds.low)
            } else {
                bounds.min
            };
            if bytes > 0 {
                ledger.untaken(device, *child, bytes)
            } else {
                0
            }
        });
        protected.sum()
    }
}

impl fmt::Debug for ProtectedGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protection of the groups in {}", self.below.display())
    }
}

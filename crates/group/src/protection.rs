//! The protection (`min` and `low`) of a group's child groups, as a member of the group reads it.

use super::{Group, name};
use gpulimit_ledger::{DeviceIndex, Ledger, MAX_DEVICES, Protection, Share, child_key};
use gpulimit_limits::{Bounds, Limits};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// How often a request looks for the table with its device.
const LOOKS: usize = 3;

/// The child groups that have protected memory. Their parent is the process's own group or a group
/// above it.
pub(super) struct ProtectedGroups {
    /// The directory that holds the child groups.
    below: PathBuf,
    /// The key of the child group of this process, whose protection does not limit the process; 0
    /// if none.
    own: u64,
    /// The value of [`Ledger::children`] at the last read of the limits, plus 1; 0 before the first
    /// read.
    read_at: AtomicU64,
    /// Whether any of the child groups has protected memory.
    any: AtomicBool,
    /// Held while a thread reads the limits after a change. Others that find the change wait.
    reading: Mutex<()>,
    /// The protected memory by the index of the device. Requests read the current table, and the
    /// limits are read into the other one. So no request waits for one that stands still.
    tables: [RwLock<Table>; 2],
    current: AtomicUsize,
}

/// For each device the shares of all protected child groups, in the order of their keys; none for a
/// device that was not in the ledger when the limits were read.
type Table = [Vec<Share>; MAX_DEVICES];

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
            reading: Mutex::default(),
            tables: Default::default(),
            current: AtomicUsize::new(0),
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
        let table = (self.protection(ledger)).and_then(|_| self.table(ledger, device));
        let shares = table.as_ref().map_or(&[][..], |table| &table[device.get()]);
        let share = shares.iter().find(|share| share.child == child);
        share.map_or(u64::MAX, |share| {
            ledger.taken(device, child).saturating_sub(share.low)
        })
    }

    /// Returns the current table, which has shares of the device; `None` if no group has any.
    fn table(&self, ledger: &Ledger, device: DeviceIndex) -> Option<RwLockReadGuard<'_, Table>> {
        for _ in 0..LOOKS {
            let current = self.current.load(Ordering::Acquire);
            // Fails if the table has become current, and the other one again, since the last line.
            let Ok(table) = self.tables[current].try_read() else {
                continue;
            };
            if !table[device.get()].is_empty() {
                return Some(table);
            }
            // The device may have come into the ledger after the last read.
            self.read_at.store(0, Ordering::Relaxed);
            self.read(ledger);
        }
        None
    }

    /// Reads how much memory of which child groups is protected. A child group whose limits cannot
    /// be read counts as unprotected.
    #[cold]
    fn read(&self, ledger: &Ledger) {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let now = ledger.children().wrapping_add(1);
        let next = 1 - self.current.load(Ordering::Relaxed);
        if self.read_at.load(Ordering::Relaxed) == now {
            return;
        }
        // Fails while a request still reads the table. The next request tries again.
        let Ok(mut table) = self.tables[next].try_write() else {
            return;
        };
        table.iter_mut().for_each(Vec::clear);
        let devices = ledger.devices();
        let mut any = false;
        for entry in fs::read_dir(&self.below).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let child = child_key(&name);
            if child == self.own {
                continue;
            }
            if let Ok(limits) = Limits::open(&entry.path().join("limits"))
                && limits.rules().is_ok_and(|rules| rules.protects())
            {
                any = true;
                for device in &devices {
                    let Bounds { min, low, .. } = limits.bounds(&device.id, device.capacity);
                    let shares = &mut table[device.index.get()];
                    let at = shares.partition_point(|share| share.child < child);
                    let low = min.max(low);
                    shares.insert(at, Share { child, min, low });
                }
            }
        }
        drop(table);
        self.current.store(next, Ordering::Release);
        self.any.store(any, Ordering::Relaxed);
        self.read_at.store(now, Ordering::Release);
    }
}

impl Protection for ProtectedGroups {
    fn untaken(&self, ledger: &Ledger, device: DeviceIndex, low: bool) -> u64 {
        let table = self.table(ledger, device);
        table.map_or(0, |table| ledger.untaken(device, &table[device.get()], low))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Root;
    use gpulimit_base::device::DeviceId;
    use gpulimit_base::units::Size;
    use gpulimit_limits::{Key, LimitSet, Selector};
    use gpulimit_support::Scratch;
    use std::os::unix::fs::PermissionsExt;

    const MIB: u64 = 1 << 20;

    /// A group `lab` with the groups `alice` and `bob`, as a process of `bob` reads it.
    struct Place {
        root: Root,
        ledger: Ledger,
        groups: ProtectedGroups,
        #[expect(dead_code, reason = "removes the directory")]
        scratch: Scratch,
    }

    impl Place {
        fn new() -> Self {
            let scratch = Scratch::new();
            fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700)).expect("changed");
            let root = Root::at(&scratch.0).expect("a root");
            for name in ["lab", "lab/alice", "lab/bob"] {
                root.create(name, &LimitSet::default()).expect("made");
            }
            let lab = root.group("lab").expect("there");
            Self {
                ledger: Ledger::open(&lab.ledger_path()).expect("open"),
                groups: ProtectedGroups::of(&lab, "lab/bob"),
                root,
                scratch,
            }
        }

        fn protect(&self, name: &str, min: u64, low: u64) {
            let group = self.root.group(name).expect("there");
            let set = |limits: &mut LimitSet| {
                limits.set(Selector::All, Key::Min, Size::Bytes(min * MIB));
                limits.set(Selector::All, Key::Low, Size::Bytes(low * MIB));
            };
            group.write_limits(set).expect("written");
        }

        /// Returns the MiB that `min`, and `min` or `low`, keep for other groups.
        fn kept(&self, device: DeviceIndex) -> [u64; 2] {
            let protection = self.groups.protection(&self.ledger);
            [false, true]
                .map(|low| protection.map_or(0, |it| it.untaken(&self.ledger, device, low)) / MIB)
        }
    }

    #[test]
    fn a_gpu_that_comes_after_a_look_is_protected_too() {
        let place = Place::new();
        let device = |uuid| {
            let id = DeviceId::gpu([uuid; 16]);
            place.ledger.device(id, 80 << 30).expect("room")
        };
        let first = device(1);
        place.protect("lab/alice", 3, 5);
        place.protect("lab/bob", 100, 100);
        assert_eq!(place.kept(first), [3, 5], "the own group's is left out");
        assert_eq!(place.kept(device(2)), [3, 5]);
        place.protect("lab/alice", 7, 5);
        assert_eq!(place.kept(first), [7, 7]);
        let alice = |device| {
            place
                .groups
                .above(&place.ledger, device, child_key("alice"))
        };
        assert_eq!(alice(first), 0, "nothing is charged");
        let bob = child_key("bob");
        assert_eq!(place.groups.above(&place.ledger, first, bob), u64::MAX);
        place.protect("lab/alice", 0, 0);
        assert_eq!((place.kept(first), alice(first)), ([0, 0], u64::MAX));
    }

    /// A thread that stands still in the middle of a request delays no other one.
    #[test]
    fn a_request_that_reads_a_table_holds_up_nothing() {
        let place = Place::new();
        let device = place.ledger.device(DeviceId::gpu([1; 16]), 80 << 30);
        let device = device.expect("room");
        place.protect("lab/alice", 1, 0);
        assert_eq!(place.kept(device), [1, 1]);
        let read = place.groups.table(&place.ledger, device).expect("a table");
        place.protect("lab/alice", 2, 0);
        assert_eq!(place.kept(device), [2, 2], "the other table is filled");
        place.protect("lab/alice", 3, 0);
        assert_eq!(place.kept(device), [2, 2], "both tables are read");
        assert_eq!(read[device.get()].len(), 1);
        drop(read);
        assert_eq!(place.kept(device), [3, 3]);
    }
}

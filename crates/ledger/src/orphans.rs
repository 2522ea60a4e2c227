//! Orphans: charges for memory that has left the process that charged it. Another member may hold
//! this memory now.
//!
//! An orphan counts against the limit until the memory is charged elsewhere or is gone. Then any
//! member may uncharge the orphan, even in another living process's slot. Besides, others change a
//! living process's charge only when they suspend it or bring it back (`suspension`).
//!
//! The process that uncharges holds the slot's claim lock, so that the slot cannot get another
//! owner. If that process dies halfway, the group stays overcharged until the slot's owner exits.

use super::atomic::{AtomicU64, Ordering};
use super::charge::{self, UNIT};
use super::lock::{self, Bytes};
use super::{DeviceIndex, Ledger, Slot, os, wait};

const HALF: u32 = 32;

/// Returns the orphaned bytes from the low half of a slot's word `left`.
pub(super) fn orphaned(left: &AtomicU64) -> u64 {
    (left.load(Ordering::Acquire) & u64::from(u32::MAX)) * UNIT
}

/// The orphans of a group on one device, at the time of reading.
#[derive(Clone, Debug, Default)]
pub struct Orphans {
    /// The slots that have orphans, each with its orphaned bytes.
    slots: Vec<(usize, u64)>,
}

impl Orphans {
    /// Returns the orphaned bytes of all slots together.
    pub fn total(&self) -> u64 {
        self.slots
            .iter()
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl Ledger {
    /// Returns the orphans on a device, including those of dead members whose slots are not
    /// cleaned.
    pub fn orphans(&self, device: DeviceIndex) -> Orphans {
        let of_slot =
            |slot: usize| match orphaned(&self.content().slots[slot].stats[device.get()].left) {
                0 => None,
                bytes => Some((slot, bytes)),
            };
        Orphans {
            slots: (0..self.high_water()).filter_map(of_slot).collect(),
        }
    }

    /// Returns the charged bytes of a slot that other processes may hold even after the slot's
    /// owner has freed its memory.
    pub(super) fn may_leave(&self, slot: usize, device: DeviceIndex) -> u64 {
        let left = &self.content().slots[slot].stats[device.get()].left;
        let shared = (left.load(Ordering::Relaxed) >> HALF) * UNIT;
        shared.saturating_add(orphaned(left))
    }
}

impl Slot {
    /// Marks `bytes` (a multiple of 4 KiB) of this slot's charge as shareable with other processes.
    /// A negative number removes marks.
    pub fn mark_shared(&self, device: DeviceIndex, bytes: i64) {
        let units = (bytes / UNIT as i64) as u64;
        self.stats(device)
            .left
            .fetch_add(units << HALF, Ordering::AcqRel);
    }

    /// Returns the orphaned bytes of this slot: the memory has left this process, but is still
    /// charged.
    pub fn orphaned(&self, device: DeviceIndex) -> u64 {
        orphaned(&self.stats(device).left)
    }

    /// Marks `bytes` of this slot's charge as orphaned: the memory has left this process, and any
    /// member may uncharge it.
    pub fn orphan(&self, device: DeviceIndex, bytes: u64) {
        let units = bytes.div_ceil(UNIT);
        // The process's own record must change first, because other members may uncharge the units
        // as soon as they are marked.
        let now = self.ledger().records(device).then(os::wall_tick);
        self.begin(device, self.word(device), now);
        self.record(device).taken(units);
        self.stats(device).left.fetch_add(units, Ordering::AcqRel);
    }

    /// Uncharges the orphans `seen` down to `keep` bytes, own slot first. Skips a slot whose
    /// orphans have changed. Returns the bytes uncharged.
    pub fn release_orphans(&self, device: DeviceIndex, seen: &Orphans, keep: u64) -> u64 {
        let mut surplus = seen.total().saturating_sub(keep);
        let mut released = 0;
        let own = |(slot, _): &&(usize, u64)| *slot == self.index();
        let others = seen.slots.iter().filter(|one| !own(one));
        for (slot, bytes) in seen.slots.iter().filter(own).chain(others) {
            let part = surplus.min(*bytes) / UNIT * UNIT;
            if part > 0 && self.take_orphan(*slot, device, *bytes, part) {
                surplus -= part;
                released += part;
            }
        }
        if released > 0 {
            wait::returned(self.ledger());
        }
        released
    }

    fn take_orphan(&self, slot: usize, device: DeviceIndex, seen: u64, part: u64) -> bool {
        let ledger = self.ledger();
        let take = || {
            let left = &ledger.content().slots[slot].stats[device.get()].left;
            let units = part.div_ceil(UNIT);
            let lowered = |word: u64| {
                let same = word & u64::from(u32::MAX) == seen / UNIT;
                same.then(|| word - units)
            };
            let taken = left
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, lowered)
                .is_ok();
            if taken {
                charge::take_out(ledger.word(slot, device), units);
            }
            taken
        };
        if slot == self.index() {
            return take();
        }
        let Ok(file) = ledger.place.open(true) else {
            return false;
        };
        if !matches!(lock::try_lock(&file, Bytes::claim(slot)), Ok(true)) {
            return false;
        }
        let taken = take();
        let _ = lock::unlock(&file, Bytes::claim(slot));
        taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::charge_unchecked;
    use crate::scratch::{Scratch, level, stranger};

    fn member(scratch: &Scratch, units: u64, orphaned: u64) -> Slot {
        let slot = scratch.join();
        charge_unchecked(&[level(&slot, scratch.device, u64::MAX)], units * UNIT);
        slot.orphan(scratch.device, orphaned * UNIT);
        slot
    }

    fn units(slot: &Slot, device: DeviceIndex) -> (u64, u64) {
        (slot.charged(device) / UNIT, slot.orphaned(device) / UNIT)
    }

    #[test]
    fn orphaned_and_shared_bytes_are_counted_separately() {
        let scratch = Scratch::new();
        let (_first, slot) = (scratch.join(), member(&scratch, 20, 0));
        let device = scratch.device;
        let may_leave = || scratch.may_leave(slot.index(), device) / UNIT;
        slot.mark_shared(device, 7 * UNIT as i64);
        assert_eq!((may_leave(), slot.orphaned(device)), (7, 0));
        slot.orphan(device, 2 * UNIT + 1);
        assert_eq!((may_leave(), slot.orphaned(device)), (10, 3 * UNIT));
        slot.mark_shared(device, -4 * UNIT as i64);
        assert_eq!((may_leave(), slot.orphaned(device)), (6, 3 * UNIT));
        assert_eq!(scratch.may_leave(slot.index(), scratch.other), 0);
        assert_eq!(scratch.orphans(device).total(), 3 * UNIT);
        assert_eq!(scratch.orphans(scratch.other).total(), 0);
        let damaged = Orphans {
            slots: vec![(0, u64::MAX), (1, 5)],
        };
        assert_eq!(damaged.total(), u64::MAX);
    }

    #[test]
    fn orphans_are_given_back_down_to_the_kept_bytes_own_ones_first() {
        let scratch = Scratch::new();
        let device = scratch.device;
        let slots = [
            member(&scratch, 10, 3),
            member(&scratch, 10, 5),
            member(&scratch, 10, 4),
        ];
        let release = |keep| slots[1].release_orphans(device, &scratch.orphans(device), keep);
        let all = || slots.each_ref().map(|slot| units(slot, device));
        assert_eq!(release(13 * UNIT), 0);
        assert_eq!(release(8 * UNIT), 4 * UNIT);
        assert_eq!(all(), [(10, 3), (6, 1), (10, 4)]);
        // Orphans are uncharged in whole units of 4 KiB only.
        assert_eq!(release(7 * UNIT + 1), 0);
        assert_eq!(release(4 * UNIT), 4 * UNIT);
        assert_eq!(all(), [(7, 0), (5, 0), (10, 4)]);
        assert_eq!(release(0), 4 * UNIT);
        assert_eq!(all(), [(7, 0), (5, 0), (6, 0)]);
        assert_eq!(release(0), 0);
    }

    #[test]
    fn an_owner_does_not_distrust_the_release_of_its_orphans() {
        let scratch = Scratch::new();
        let device = scratch.device;
        let (owner, other) = (member(&scratch, 10, 4), member(&scratch, 1, 0));
        assert_eq!(
            other.release_orphans(device, &scratch.orphans(device), 0),
            4 * UNIT
        );
        let path = [level(&owner, device, 20 * UNIT)];
        assert!(crate::try_charge(&path, UNIT) && !owner.distrusts());
        assert_eq!(units(&owner, device), (7, 0));
    }

    #[test]
    fn changed_and_locked_orphans_are_not_given_back() {
        let scratch = Scratch::new();
        let device = scratch.device;
        let (owner, other) = (member(&scratch, 10, 4), member(&scratch, 1, 0));
        let seen = scratch.orphans(device);
        owner.orphan(device, UNIT);
        assert_eq!(other.release_orphans(device, &seen, 0), 0);
        assert_eq!(units(&owner, device), (10, 5));
        let file = scratch.place.open(true).expect("open");
        assert!(lock::try_lock(&file, Bytes::claim(owner.index())).expect("locks"));
        let seen = scratch.orphans(device);
        assert_eq!(other.release_orphans(device, &seen, 0), 0);
        assert_eq!(
            owner.release_orphans(device, &seen, 4 * UNIT),
            UNIT,
            "a process uncharges its own orphans without a lock"
        );
        lock::unlock(&file, Bytes::claim(owner.index())).expect("locks");
        assert_eq!(
            other.release_orphans(device, &scratch.orphans(device), 0),
            4 * UNIT
        );
        // This process can take the claim lock, so the lock was released.
        assert!(lock::try_lock(&file, Bytes::claim(owner.index())).expect("locks"));
    }

    #[test]
    fn orphans_of_the_dead_can_be_given_back_and_waiters_are_woken() {
        let scratch = Scratch::new();
        let device = scratch.device;
        let slot = member(&scratch, 1, 0);
        let dead = scratch.dead(&stranger(1), 5, 0);
        let left = &scratch.content().slots[dead].stats[device.get()].left;
        left.store(2, Ordering::Relaxed);
        let signals = &scratch.content().header.signals;
        signals.waiting.store(1, Ordering::Relaxed);
        let release = || slot.release_orphans(device, &scratch.orphans(device), 0);
        assert_eq!((release(), scratch.charged(device)), (2 * UNIT, 4 * UNIT));
        assert_eq!(signals.returned.load(Ordering::Relaxed), 1);
        signals.waiting.store(1, Ordering::Relaxed);
        assert_eq!(release(), 0);
        assert_eq!(
            signals.returned.load(Ordering::Relaxed),
            1,
            "nothing was uncharged, so no process is woken"
        );
    }
}

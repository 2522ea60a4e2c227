//! Charges for memory that has left its process and that another member may have got: orphans.
//!
//! They stay in the word of the slot that they were charged in, so that a charge counts them as any other, until somebody has seen
//! where the memory is: whoever bears it has charged it, or nobody of the group does. Whoever sees that gives them back, in whatever
//! slot they are; the owner may be asleep. That is the one change that a process makes in the word of a living other: it only lowers it, by
//! no more than its owner has put up for that, and under the slot's claim lock, so that the slot has no other owner by then. One that dies in
//! between leaves a charge too much, until the owner dies.

use super::atomic::{AtomicU64, Ordering};
use super::charge::{self, UNIT};
use super::lock::{self, Bytes};
use super::{DeviceIndex, Ledger, Slot, wait};

const HALF: u32 = 32;

/// Bytes of the orphans in a slot's word of what has left it or may leave it.
pub(super) fn orphaned(left: &AtomicU64) -> u64 {
    (left.load(Ordering::Acquire) & u64::from(u32::MAX)) * UNIT
}

/// The orphans of a group on one device at one moment.
#[derive(Clone, Debug, Default)]
pub struct Orphans {
    /// Slots, and what they have.
    slots: Vec<(usize, u64)>,
}

impl Orphans {
    /// Bytes.
    pub fn total(&self) -> u64 {
        self.slots
            .iter()
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl Ledger {
    /// The orphans on a device, of the living and of the dead that nobody has cleaned.
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

    /// Bytes of a slot that may be in the hands of another process when its owner lets go of them.
    pub(super) fn may_leave(&self, slot: usize, device: DeviceIndex) -> u64 {
        let left = &self.content().slots[slot].stats[device.get()].left;
        let shared = (left.load(Ordering::Relaxed) >> HALF) * UNIT;
        shared.saturating_add(orphaned(left))
    }
}

impl Slot {
    /// `bytes` more (or less) of what is charged are memory that other processes may hold, too: in multiples of 4 KiB.
    pub fn share(&self, device: DeviceIndex, bytes: i64) {
        let units = (bytes / UNIT as i64) as u64;
        self.stats(device)
            .left
            .fetch_add(units << HALF, Ordering::AcqRel);
    }

    /// Bytes that are charged here and have left this process.
    pub fn orphaned(&self, device: DeviceIndex) -> u64 {
        orphaned(&self.stats(device).left)
    }

    /// `bytes` that are charged here have left this process. They are anybody's to give back.
    pub fn orphan(&self, device: DeviceIndex, bytes: u64) {
        let units = bytes.div_ceil(UNIT);
        // From here on it is no stranger who takes them out of the word.
        self.begin(device);
        self.record(device).taken(units);
        self.stats(device).left.fetch_add(units, Ordering::AcqRel);
    }

    /// Gives orphans back until `keep` bytes of those that were seen are left, our own first. Those that have changed since stay.
    /// Returns the bytes that were given back.
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

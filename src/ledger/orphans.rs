//! Charges for memory that has left its process and that another member may have got: orphans.
//!
//! They stay in the word of the slot that they were charged in, so that a charge counts them as any other, until somebody has seen
//! where the memory is: whoever bears it has charged it, or nobody of the group does. Whoever sees that gives them back, in whatever
//! slot they are; the owner may be asleep. That is the one change that a process makes in the word of a living other: it only lowers it, by
//! no more than its owner has put up for that, and under the slot's claim lock, so that the slot has no other owner by then. One that dies in
//! between leaves a charge too much, until the owner dies.

use super::atomic::Ordering;
use super::charge::{self, UNIT};
use super::lock::{self, Bytes};
use super::{DeviceIndex, Ledger, Slot};

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
        let of_slot = |slot: usize| {
            let orphaned = &self.content().slots[slot].stats[device.get()].orphaned;
            match orphaned.load(Ordering::Acquire) {
                0 => None,
                bytes => Some((slot, bytes)),
            }
        };
        Orphans {
            slots: (0..self.high_water()).filter_map(of_slot).collect(),
        }
    }

    /// Bytes of a slot that may be in the hands of another process when its owner lets go of them.
    pub(super) fn may_leave(&self, slot: usize, device: DeviceIndex) -> u64 {
        let stats = &self.content().slots[slot].stats[device.get()];
        let [shared, orphaned] =
            [&stats.shared, &stats.orphaned].map(|bytes| bytes.load(Ordering::Relaxed));
        shared.saturating_add(orphaned)
    }
}

impl Slot {
    /// So many of the charged bytes are memory that other processes may hold, too: the whole figure.
    pub fn publish_shared(&self, device: DeviceIndex, bytes: u64) {
        self.stats(device).shared.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that are charged here and have left this process.
    pub fn orphaned(&self, device: DeviceIndex) -> u64 {
        self.stats(device).orphaned.load(Ordering::Relaxed)
    }

    /// `bytes` that are charged here have left this process. They are anybody's to give back.
    pub fn orphan(&self, device: DeviceIndex, bytes: u64) {
        self.stats(device)
            .orphaned
            .fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives orphans back until `keep` bytes of those that were seen are left, our own first. Those that have changed since stay.
    /// Returns the bytes that were given back.
    pub fn release_orphans(&self, device: DeviceIndex, seen: &Orphans, keep: u64) -> u64 {
        let mut surplus = seen.total().saturating_sub(keep);
        let mut released = 0;
        let own = |(slot, _): &&(usize, u64)| *slot == self.index();
        let others = seen.slots.iter().filter(|one| !own(one));
        for (slot, bytes) in seen.slots.iter().filter(own).chain(others) {
            let part = surplus.min(*bytes);
            if part > 0 && self.take_orphan(*slot, device, *bytes, part) {
                surplus -= part;
                released += part;
            }
        }
        released
    }

    fn take_orphan(&self, slot: usize, device: DeviceIndex, seen: u64, part: u64) -> bool {
        let ledger = self.ledger();
        let take = || {
            let orphaned = &ledger.content().slots[slot].stats[device.get()].orphaned;
            let taken = orphaned
                .compare_exchange(seen, seen - part, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
            if taken {
                charge::take_out(ledger.word(slot, device), part.div_ceil(UNIT));
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

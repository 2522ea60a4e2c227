//! First contexts in a group whose requests wait.
//!
//! The *entrance* of a device names the process that made its first context there last, and has not
//! asked for memory since: the next first context waits for it. A *room* is memory that is kept for
//! a job with a limit of its own. The words of a room are in the slots of the job's processes.
//!
//! Any member can write these words. A word of the entrance holds others for [`MOST_MS`] at most,
//! and a room only takes memory from others, as a charge does.

use super::atomic::{AtomicU64, Ordering};
use super::charge::{UNIT, granted};
use super::{DeviceEntry, DeviceIndex, Ledger, Slot, os, owner, wait};

/// The longest time that a process has for its first context, in milliseconds.
const MOST_MS: u64 = 10_000;
/// How long the next first context waits for a process that asks for nothing, in milliseconds.
const STAY_MS: u64 = 1_000;
/// The most rooms on a device that requests leave free: a hostile member could make a request read
/// as many as there are slots. Those of further jobs are not kept.
const MOST_ROOMS: usize = 64;
/// The bits of a word of the entrance for the time when it ends to hold, in milliseconds since
/// boot. The bits above have the index of the slot plus 1.
const TIME: u64 = (1 << TIME_BITS) - 1;
const TIME_BITS: u32 = 48;

impl Ledger {
    fn entrance(&self, device: DeviceIndex) -> &AtomicU64 {
        &self.header().gpus[device.get()].entrance
    }

    /// Clears the words of the entrance that an earlier owner of the slot has left.
    pub(super) fn clear_entrances(&self, slot: usize) {
        let mark = slot as u64 + 1;
        for device in DeviceIndex::all() {
            self.change_entrance(device, |word| (word >> TIME_BITS == mark).then_some(0));
        }
    }

    fn change_entrance(&self, device: DeviceIndex, next: impl Fn(u64) -> Option<u64>) -> bool {
        let entrance = self.entrance(device);
        let before = entrance.load(Ordering::SeqCst);
        let (order, failed) = (Ordering::SeqCst, Ordering::Relaxed);
        next(before).is_some_and(|next| {
            let changed = entrance.compare_exchange(before, next, order, failed);
            changed.is_ok()
        })
    }

    /// Returns the bytes that are kept for the job of the slot's owner. A suspended process keeps
    /// none: it comes back when they are free again.
    pub(super) fn room(&self, slot: usize, device: DeviceIndex) -> u64 {
        let stats = &self.content().slots[slot].stats[device.get()];
        match stats.room.load(Ordering::Relaxed) {
            room if room != 0 && self.suspended(slot, device) == 0 => room,
            _ => 0,
        }
    }

    /// Returns the bytes that the processes of the job with this key have charged.
    pub fn charged_by_job(&self, device: DeviceIndex, job: u64) -> u64 {
        let slots = (0..self.high_water()).filter(|slot| self.job(*slot) == job);
        let units = slots.map(|slot| granted(self.word(slot, device).load(Ordering::Acquire)));
        units.sum::<u64>() * UNIT
    }

    /// Lowers what is kept for the job with this key to what `max` returns for a device.
    pub fn bound_rooms(&self, job: u64, max: impl Fn(&DeviceEntry) -> u64) {
        for device in self.devices() {
            let slots = (0..self.high_water()).filter(|slot| self.job(*slot) == job);
            for slot in slots {
                let stats = &self.content().slots[slot].stats[device.index.get()];
                stats.room.fetch_min(max(&device), Ordering::SeqCst);
            }
        }
        wait::returned(self);
    }

    fn job(&self, slot: usize) -> u64 {
        self.content().slots[slot].job.load(Ordering::Relaxed)
    }
}

impl Slot {
    fn mark(&self) -> u64 {
        self.index() as u64 + 1
    }

    fn entrance_until(&self, ms: u64) -> u64 {
        (self.mark() << TIME_BITS) | ((os::boot_ms() + ms) & TIME)
    }

    /// Returns whether another living process has the entrance.
    pub fn is_entrance_held(&self, device: DeviceIndex) -> bool {
        let word = self.ledger().entrance(device).load(Ordering::SeqCst);
        self.is_held(word)
    }

    fn is_held(&self, word: u64) -> bool {
        let ledger = self.ledger();
        let left = (word & TIME).checked_sub(os::boot_ms());
        let slot = (word >> TIME_BITS) as usize;
        slot != 0
            && slot != self.index() + 1
            && slot <= ledger.high_water()
            && left.is_some_and(|left| left <= MOST_MS)
            && !(ledger.place.open(false)).is_ok_and(|file| owner::is_dead(&file, slot - 1))
    }

    /// Takes the entrance for this process. Returns false if another living process has it.
    pub fn take_entrance(&self, device: DeviceIndex) -> bool {
        let next = |word| (!self.is_held(word)).then(|| self.entrance_until(MOST_MS));
        self.ledger().change_entrance(device, next)
    }

    /// Notes that this process, if it has the entrance, has its context, or works on its code.
    pub fn stay_at_entrance(&self, device: DeviceIndex) {
        let is_own = |word: u64| word >> TIME_BITS == self.mark();
        let next = |word| is_own(word).then(|| self.entrance_until(STAY_MS));
        self.ledger().change_entrance(device, next);
    }

    /// Gives the entrance to the next first context, if this process has it.
    pub fn leave_entrance(&self, device: DeviceIndex) {
        let is_own = |word: u64| word >> TIME_BITS == self.mark();
        if (self.ledger()).change_entrance(device, |word| is_own(word).then_some(0)) {
            wait::returned(self.ledger());
        }
    }

    /// Notes that this process belongs to the job with the key `job`: its charges count in what is
    /// kept for the job. 0 is none.
    pub fn belong_to(&self, job: u64) {
        self.page().job.store(job, Ordering::Relaxed);
    }

    /// Keeps `bytes` of the device for the job with the key `job`, which this process belongs to,
    /// as long as one of the processes for which they are kept lives, and is not suspended.
    pub fn keep_room(&self, device: DeviceIndex, job: u64, bytes: u64) {
        self.belong_to(job);
        self.stats(device).room.store(bytes, Ordering::Release);
        self.ledger().header().rooms.store(1, Ordering::SeqCst);
    }

    /// Gives up what this process keeps for its job.
    pub fn leave_room(&self, device: DeviceIndex) {
        self.stats(device).room.store(0, Ordering::Release);
        wait::returned(self.ledger());
    }

    /// Returns whether memory is kept for the job of this process.
    pub fn has_room(&self, device: DeviceIndex) -> bool {
        self.job_has_room(device, self.ledger().job(self.index()))
    }

    /// Returns whether memory is kept for the job with this key.
    pub fn job_has_room(&self, device: DeviceIndex, job: u64) -> bool {
        let ledger = self.ledger();
        (0..ledger.high_water())
            .any(|slot| ledger.room(slot, device) != 0 && ledger.job(slot) == job)
    }

    /// Returns the bytes that are kept for the jobs of other processes, and not charged. Read
    /// before a request is published: a request under way may take a part of a new room.
    #[inline]
    pub fn rooms_of_others(&self, device: DeviceIndex) -> u64 {
        let ledger = self.ledger();
        match ledger.header().rooms.load(Ordering::Relaxed) {
            0 => 0,
            _ => {
                let own = ledger.job(self.index());
                ledger.rooms_but(device, |job| job == own)
            }
        }
    }
}

impl Ledger {
    /// Returns the bytes that are kept for jobs and not charged, but for those whose keys are own.
    #[cold]
    pub fn rooms_but(&self, device: DeviceIndex, is_own: impl Fn(u64) -> bool) -> u64 {
        let ledger = self;
        // The keys of other jobs, with their rooms.
        let (mut jobs, mut count) = ([(0, 0); MOST_ROOMS], 0);
        for slot in 0..ledger.high_water() {
            let (room, job) = (ledger.room(slot, device), ledger.job(slot));
            let is_known = |job| jobs[..count].iter().any(|(known, _)| *known == job);
            if room != 0 && !is_own(job) && count < MOST_ROOMS && !is_known(job) {
                jobs[count] = (job, room);
                count += 1;
            }
        }
        for slot in 0..ledger.high_water() {
            let job = ledger.job(slot);
            if let Some((_, room)) = jobs[..count].iter_mut().find(|(known, _)| *known == job) {
                let units = granted(ledger.word(slot, device).load(Ordering::Acquire));
                *room = room.saturating_sub(units * UNIT);
            }
        }
        let rooms = jobs[..count].iter().map(|(_, room)| *room);
        rooms.fold(0, u64::saturating_add)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::{Knows, Scratch, stranger};

    #[test]
    fn one_living_process_has_the_entrance_of_a_device() {
        let scratch = Scratch::new();
        let (one, other) = (scratch.join(), scratch.join());
        let device = scratch.device;
        assert!(one.take_entrance(device) && !one.is_entrance_held(device));
        assert!(other.is_entrance_held(device) && !other.take_entrance(device));
        assert!(other.take_entrance(scratch.other), "another device");
        other.leave_entrance(device);
        assert!(!other.take_entrance(device), "only the owner leaves");
        one.leave_entrance(device);
        assert!(other.take_entrance(device));
        drop(other);
        assert!(one.take_entrance(device), "the owner is dead");
    }

    #[test]
    fn an_entrance_holds_others_for_a_bounded_time() {
        let scratch = Scratch::new();
        let (one, other) = (scratch.join(), scratch.join());
        let device = scratch.device;
        let set = |until| {
            let word = (one.mark() << TIME_BITS) | (until & TIME);
            scratch.entrance(device).store(word, Ordering::SeqCst);
        };
        let now = os::boot_ms();
        for until in [0, now - 1, now + MOST_MS + 60_000, u64::MAX] {
            set(until);
            assert!(!other.is_entrance_held(device), "{until}");
        }
        set(now + MOST_MS);
        assert!(other.is_entrance_held(device));
        one.stay_at_entrance(device);
        let until = scratch.entrance(device).load(Ordering::SeqCst) & TIME;
        assert!(until < now + MOST_MS, "a context was made");
        other.stay_at_entrance(device);
        let word = u64::MAX << TIME_BITS | (now + MOST_MS);
        scratch.entrance(device).store(word, Ordering::SeqCst);
        assert!(!other.is_entrance_held(device), "no such slot");
    }

    #[test]
    fn the_next_owner_of_a_slot_does_not_have_the_entrance() {
        let scratch = Scratch::new();
        let one = scratch.join();
        assert!(one.take_entrance(scratch.device));
        let index = one.index();
        drop(one);
        let (next, other) = (scratch.join(), scratch.join());
        assert_eq!(next.index(), index);
        assert!(!other.is_entrance_held(scratch.device));
    }

    #[test]
    fn a_room_is_what_a_job_has_not_charged_of_it() {
        let scratch = Scratch::new();
        let (one, two, other) = (scratch.join(), scratch.join(), scratch.join());
        let device = scratch.device;
        let charge = |slot: &Slot, units| slot.word(device).store(units, Ordering::SeqCst);
        let rooms = || [&one, &two, &other].map(|slot| slot.rooms_of_others(device) / UNIT);
        assert_eq!(rooms(), [0, 0, 0]);
        for slot in [&one, &two] {
            slot.keep_room(device, 7, 10 * UNIT);
        }
        assert!(one.has_room(device) && !one.has_room(scratch.other));
        assert!(other.job_has_room(device, 7) && !other.job_has_room(device, 8));
        assert_eq!(rooms(), [0, 0, 10], "two processes of a job share its room");
        charge(&one, 3);
        charge(&two, 4);
        charge(&other, 50);
        assert_eq!(rooms(), [0, 0, 3]);
        other.keep_room(device, 8, 60 * UNIT);
        assert_eq!(rooms(), [10, 10, 3]);
        charge(&two, 40);
        assert_eq!(rooms(), [10, 10, 0]);
        for slot in [&one, &two, &other] {
            charge(slot, 0);
        }
        drop(one);
        assert_eq!(other.rooms_of_others(device), 10 * UNIT);
        drop(two);
        assert_eq!(other.rooms_of_others(device), 0);
    }

    #[test]
    fn a_job_keeps_no_more_than_its_limit_and_nothing_while_it_is_suspended() {
        let scratch = Scratch::new();
        let (one, two, other) = (scratch.join(), scratch.join(), scratch.join());
        let device = scratch.device;
        let room = || other.rooms_of_others(device) / UNIT;
        let away = |slot: &Slot, bytes| {
            let suspended = &slot.stats(device).suspended;
            suspended.store(bytes, Ordering::SeqCst);
        };
        one.keep_room(device, 7, 10 * UNIT);
        scratch.bound_rooms(8, |_| 0);
        assert_eq!(room(), 10, "another job");
        scratch.bound_rooms(7, |_| 20 * UNIT);
        assert_eq!(room(), 10, "a higher limit");
        scratch.bound_rooms(7, |_| 6 * UNIT);
        assert_eq!(room(), 6);
        away(&one, UNIT);
        assert!(!other.job_has_room(device, 7));
        assert_eq!(room(), 0);
        two.keep_room(device, 7, 6 * UNIT);
        assert_eq!(room(), 6, "another process of the job runs");
        two.leave_room(device);
        assert_eq!(room(), 0);
        away(&one, 0);
        assert_eq!(room(), 6);
        // A process of the job for which nothing is kept.
        assert_eq!(two.rooms_of_others(device), 0);
        two.word(device).store(2, Ordering::SeqCst);
        assert_eq!((room(), scratch.charged_by_job(device, 7)), (4, 2 * UNIT));
    }

    #[test]
    fn the_room_of_a_dead_process_without_a_charge_is_cleaned() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let dead = scratch.dead(&stranger(1), 0, 0);
        let page = &scratch.content().slots[dead];
        page.job.store(9, Ordering::Relaxed);
        let room = &page.stats[scratch.device.get()].room;
        room.store(UNIT, Ordering::Relaxed);
        scratch.header().rooms.store(1, Ordering::Relaxed);
        assert_eq!(slot.rooms_of_others(scratch.device), UNIT);
        slot.clean_others(scratch.device, &Knows(Some(false)));
        assert_eq!(slot.rooms_of_others(scratch.device), 0);
        assert_eq!(page.job.load(Ordering::Relaxed), 0);
    }
}

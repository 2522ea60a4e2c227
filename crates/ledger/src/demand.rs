//! Demands: a process asks members of its groups to give back memory that they use.
//!
//! Members that registered for it sleep on a futex in their slot of the topmost ledger of their
//! groups. A process that needs memory is in that ledger too, because it shares at least that group
//! with the member. So one futex is enough for demands in all groups.
//!
//! A demand is one word, so that it is never half written. Any member can write any of these words:
//! whoever is asked checks the demand against what it holds, and a wrong index or time only makes a
//! process ask or be asked in vain.

use super::atomic::{AtomicU64, Ordering, Word};
use super::charge::{UNIT, granted};
use super::layout::PressureWords;
use super::owner::is_dead;
use super::{Category, DeviceIndex, Ledger, MAX_SLOTS, Slot, os};
use std::time::Duration;

/// The shortest time between two demands on a process, whoever asks. A process that is asked all
/// the time cannot work.
pub const OFTEN: Duration = Duration::from_millis(200);
const OFTEN_MS: u64 = OFTEN.as_millis() as u64;

/// Why a process is asked to give memory back.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Reason {
    /// Another process needs memory for a request.
    Request = 1,
    /// The group's usage is above `high`.
    High = 2,
    /// The group's usage is above its limit.
    Limit = 3,
}

/// The memory that a process is asked to give back.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Demand {
    /// The device, by its index in the topmost ledger.
    pub device: DeviceIndex,
    /// The group that needs memory, as the number of groups above it.
    pub depth: u8,
    /// Bytes, in whole units of 4 KiB when read.
    pub bytes: u64,
    /// Why the process is asked.
    pub reason: Reason,
}

impl Demand {
    /// Returns the demand as one word, never 0: units, device, depth and reason.
    fn word(self) -> u64 {
        let units = self.bytes.div_ceil(UNIT).min(u64::from(u32::MAX));
        let device = self.device.get() as u64;
        units << 32 | device << 16 | u64::from(self.depth) << 8 | self.reason as u64
    }

    /// Reads a word. Returns `None` if the word is not a demand.
    fn of(word: u64) -> Option<Self> {
        let reasons = [Reason::Request, Reason::High, Reason::Limit];
        let [reason, depth, device, ..] = word.to_le_bytes();
        Some(Self {
            device: DeviceIndex::new(device.into())?,
            depth,
            bytes: (word >> 32) * UNIT,
            reason: reasons.into_iter().find(|known| *known as u8 == reason)?,
        })
    }
}

/// The words of a slot by which its owner is asked.
pub(super) struct Door<'a, W> {
    pub demand: &'a W,
    pub count: &'a W,
    pub asked_at: &'a W,
}

impl<'a> Door<'a, AtomicU64> {
    fn of(words: &'a PressureWords) -> Self {
        Self {
            demand: &words.demand,
            count: &words.count,
            asked_at: &words.asked_at,
        }
    }
}

impl<W: Word> Door<'_, W> {
    /// Writes a demand, unless the owner was asked less than [`OFTEN`] before `now_ms`. Returns
    /// whether it was written.
    pub(super) fn ask(&self, demand: u64, now_ms: u64) -> bool {
        let before = self.asked_at.load(Ordering::Relaxed);
        // A time far in the future is wrong, or the wall clock was set back.
        let is_recent = now_ms.abs_diff(before) < OFTEN_MS;
        if is_recent
            || self
                .asked_at
                .replace(before, now_ms, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        // The count comes last: an owner that sees the old count does not sleep, or finds the
        // demand.
        self.demand.store(demand, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Takes the demand away, for one of the owner's threads; 0 if there is none.
    pub(super) fn take(&self) -> u64 {
        let demand = self.demand.load(Ordering::SeqCst);
        match demand != 0 && self.demand.replace(demand, 0, Ordering::Relaxed).is_ok() {
            true => demand,
            false => 0,
        }
    }
}

/// The answer of a process that was asked.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    /// It has given what it was asked for, and may have more.
    Enough,
    /// It has given less than it was asked for, so it has nothing more.
    TooLittle,
}

/// A registered member that holds memory.
#[derive(Copy, Clone, Debug)]
pub struct Askable {
    /// The member's slot in the ledger that was searched.
    pub slot: usize,
    /// The member's slot in the topmost ledger.
    top: usize,
    /// The key of the child group that contains the member; 0 for the ledger's own group.
    pub child: u64,
    /// Bytes that the member uses on the device, without those that the driver takes itself: a
    /// program cannot give these back.
    pub in_use: u64,
}

impl Ledger {
    /// Returns the living members that registered and use memory of the device, the largest first,
    /// without those whose own request waits and without the owner of the slot `but`. `top` is the
    /// topmost ledger of the groups of this ledger's group.
    pub fn askable(&self, device: DeviceIndex, top: &Self, but: Option<&Slot>) -> Vec<Askable> {
        let mut file = None;
        let mut found: Vec<Askable> = Vec::new();
        for slot in 0..self.high_water() {
            let page = &self.content().slots[slot];
            let registered = page.pressure.registered.load(Ordering::Acquire);
            // A member whose own request waits cannot answer: frameworks hold the lock of their
            // allocator meanwhile.
            if registered == 0
                || page.waiting.ticket.load(Ordering::Acquire) != 0
                || but.is_some_and(|but| but.index() == slot)
            {
                continue;
            }
            let charge = self.charge(slot, device);
            let charged = granted(charge.word.load(Ordering::Relaxed)) * UNIT;
            let driver = &page.stats[device.get()].by[Category::Driver as usize];
            let others = [&charge.idle, driver].map(|word| word.load(Ordering::Relaxed));
            let in_use = others.into_iter().fold(charged, u64::saturating_sub);
            let index = usize::try_from(registered - 1).unwrap_or(MAX_SLOTS);
            if in_use == 0 || index >= MAX_SLOTS || !self.is_same_owner(slot, top, index) {
                continue;
            }
            let file = file.get_or_insert_with(|| self.place.open(false).ok());
            if !file.as_ref().is_some_and(|file| is_dead(file, slot)) {
                found.push(Askable {
                    slot,
                    top: index,
                    child: page.owner.child.load(Ordering::Relaxed),
                    in_use,
                });
            }
        }
        gpulimit_base::order::sort_by(&mut found, |a, b| a.in_use > b.in_use);
        found
    }

    /// Returns whether two slots, of this ledger and of another one, have the same owner.
    fn is_same_owner(&self, slot: usize, other: &Self, index: usize) -> bool {
        let key = |ledger: &Self, slot| Some(ledger.owner(slot)?.key());
        let own = key(self, slot);
        own.is_some() && own == key(other, index)
    }

    /// Asks a member, in the topmost ledger. Returns false if the member was asked a moment ago.
    pub fn ask(&self, member: &Askable, demand: Demand) -> bool {
        let words = &self.content().slots[member.top].pressure;
        let asked = self.map.writable() && Door::of(words).ask(demand.word(), os::wall_ms());
        if asked {
            os::futex_wake_all(&words.count);
        }
        asked
    }

    /// Returns the pressure on a member, in the topmost ledger.
    pub fn pressure(&self, member: &Askable) -> &PressureWords {
        &self.content().slots[member.top].pressure
    }

    /// Returns the bytes that the owner of a slot has charged.
    pub fn charged_by(&self, slot: usize, device: DeviceIndex) -> u64 {
        let word = self.word(slot % MAX_SLOTS, device);
        granted(word.load(Ordering::Relaxed)) * UNIT
    }
}

impl PressureWords {
    /// Returns the number of demands so far. The owner reads it before [`Slot::take_demand`], and
    /// passes it to [`Slot::await_demand`].
    pub fn demands(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns how the owner has answered the demand with this number, or a later one. `None` if it
    /// has not. A demand counts as answered if another member has set the number of demands back.
    pub fn answer(&self, demand: u64) -> Option<Answer> {
        let word = self.answered.load(Ordering::SeqCst);
        // The word has the lower 63 bits of the number.
        let demand = demand.min(self.demands()) << 1;
        (word | 1 > demand).then_some(match word & 1 {
            0 => Answer::Enough,
            _ => Answer::TooLittle,
        })
    }

    /// Returns how the owner has answered its last demand; `None` if it has not.
    pub fn last_answer(&self) -> Option<Answer> {
        self.answer(u64::MAX)
    }

    /// Returns whether the owner has left its last demand without an answer for this time.
    pub fn is_silent_for(&self, time: Duration) -> bool {
        self.last_answer().is_none() && self.since_asked() >= time
    }

    /// Returns the time since the last demand.
    pub fn since_asked(&self) -> Duration {
        let asked_at = self.asked_at.load(Ordering::Relaxed);
        Duration::from_millis(os::wall_ms().abs_diff(asked_at))
    }
}

impl Slot {
    /// Returns the pressure on this process. Only the slot in the topmost ledger has it.
    pub fn pressure(&self) -> &PressureWords {
        &self.page().pressure
    }

    /// Removes an old demand, in the topmost ledger, unless this process is registered already.
    pub fn forget_demand(&self) {
        let words = self.pressure();
        if words.registered.load(Ordering::Relaxed) == 0 {
            words.demand.store(0, Ordering::SeqCst);
            let count = words.count.load(Ordering::SeqCst);
            words.answered.store(count << 1, Ordering::SeqCst);
        }
    }

    /// Lets other processes ask this process from now on, or not any more. `top` is this process's
    /// slot in the topmost ledger.
    pub fn register(&self, top: &Self, registered: bool) {
        let word = if registered {
            top.index() as u64 + 1
        } else {
            0
        };
        self.pressure().registered.store(word, Ordering::Release);
    }

    /// Takes the demand on this process away, in the topmost ledger.
    pub fn take_demand(&self) -> Option<Demand> {
        Demand::of(Door::of(self.pressure()).take())
    }

    /// Answers the demands up to the one with this number, in the topmost ledger.
    pub fn answer(&self, demand: u64, answer: Answer) {
        let word = demand << 1 | u64::from(answer == Answer::TooLittle);
        self.pressure().answered.store(word, Ordering::SeqCst);
    }

    /// Sleeps until the number of demands is another one than `seen`, at most for `time`. Returns
    /// false if a signal handler has run meanwhile.
    pub fn await_demand(&self, seen: u64, time: Duration) -> bool {
        os::futex_wait(&self.pressure().count, seen as u32, time)
    }

    /// Wakes this process's threads that sleep in [`Self::await_demand`].
    pub fn end_waits(&self) {
        let count = &self.pressure().count;
        count.fetch_add(1, Ordering::SeqCst);
        os::futex_wake_all(count);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::{Scratch, stranger};

    fn demand(bytes: u64) -> Demand {
        Demand {
            device: DeviceIndex::new(31).expect("a device"),
            depth: 7,
            bytes,
            reason: Reason::Limit,
        }
    }

    #[test]
    fn a_demand_is_read_as_it_was_written() {
        for (bytes, read) in [(0, 0), (1, UNIT), (5 * UNIT, 5 * UNIT)] {
            assert_eq!(Demand::of(demand(bytes).word()), Some(demand(read)));
        }
        let most = Demand::of(demand(u64::MAX).word()).expect("a demand");
        assert_eq!(most.bytes, u64::from(u32::MAX) * UNIT);
        for word in [0, 4, 255, 1 | 32 << 16, u64::MAX] {
            assert_eq!(Demand::of(word), None, "{word:#x}");
        }
    }

    #[test]
    fn a_member_is_asked_once_in_a_while_whoever_asks() {
        let words = [const { AtomicU64::new(0) }; 3];
        let [demand, count, asked_at] = &words;
        let door = Door {
            demand,
            count,
            asked_at,
        };
        let now = 1_000_000;
        assert!(door.ask(1, now) && !door.ask(2, now) && !door.ask(2, now + OFTEN_MS - 1));
        assert_eq!(door.take(), 1);
        assert_eq!(door.take(), 0, "only one thread is told");
        assert!(door.ask(3, now + OFTEN_MS));
        assert!(
            door.ask(4, now + 2 * OFTEN_MS),
            "a later demand replaces an earlier one"
        );
        assert_eq!((door.take(), count.load(Ordering::Relaxed)), (4, 3));
        // The wall clock was set back, or a member has written a wrong time.
        asked_at.store(now + 3_600_000, Ordering::Relaxed);
        assert!(door.ask(5, now));
        asked_at.store(u64::MAX, Ordering::Relaxed);
        assert!(door.ask(6, now));
    }

    #[test]
    fn only_registered_living_members_with_memory_are_askable() {
        let scratch = Scratch::new();
        let (asker, small, large) = (scratch.join(), scratch.join(), scratch.join());
        let device = scratch.device;
        let hold = |slot: &Slot, units: u64| slot.word(device).store(units, Ordering::Relaxed);
        let found = |but| {
            let found = scratch.askable(device, &scratch, but);
            found
                .iter()
                .map(|it| (it.slot, it.in_use))
                .collect::<Vec<_>>()
        };
        for (slot, units) in [(&asker, 9), (&small, 2), (&large, 5)] {
            hold(slot, units);
        }
        assert_eq!(found(None), []);
        for slot in [&asker, &small, &large] {
            slot.register(slot, true);
        }
        let (small_at, large_at) = (small.index(), large.index());
        assert_eq!(
            found(Some(&asker)),
            [(large_at, 5 * UNIT), (small_at, 2 * UNIT)]
        );
        assert_eq!(found(None)[0], (asker.index(), 9 * UNIT));
        large.publish_idle(device, 4 * UNIT);
        assert_eq!(
            found(Some(&asker))[0],
            (small_at, 2 * UNIT),
            "reserve is not in use"
        );
        small.register(&small, false);
        large.publish_idle(device, 6 * UNIT);
        assert_eq!(
            found(Some(&asker)),
            [],
            "unregistered, and without memory in use"
        );
        large.publish_idle(device, 0);
        large.publish(device, Category::Driver, 4 * UNIT);
        assert_eq!(
            found(Some(&asker)),
            [(large_at, UNIT)],
            "a context cannot be given back"
        );
    }

    #[test]
    fn wrong_words_ask_nobody() {
        let scratch = Scratch::new();
        let (asker, member) = (scratch.join(), scratch.join());
        member.word(scratch.device).store(5, Ordering::Relaxed);
        let found = || {
            scratch
                .askable(scratch.device, &scratch, Some(&asker))
                .len()
        };
        for wrong in [u64::MAX, MAX_SLOTS as u64 + 1, MAX_SLOTS as u64, 4_000] {
            member.pressure().registered.store(wrong, Ordering::Relaxed);
            assert_eq!(found(), 0, "{wrong}");
        }
        let dead = scratch.dead(&stranger(1), 5, 0);
        let page = &scratch.content().slots[dead];
        page.pressure
            .registered
            .store(dead as u64 + 1, Ordering::Relaxed);
        assert_eq!(found(), 0, "a dead member");
        member.register(&member, true);
        assert_eq!(found(), 1);
    }

    #[test]
    fn answers_are_those_to_a_demand_or_a_later_one() {
        let scratch = Scratch::new();
        let member = scratch.join();
        member.word(scratch.device).store(5, Ordering::Relaxed);
        member.register(&member, true);
        let askable = scratch.askable(scratch.device, &scratch, None)[0];
        let ask = || {
            let asked_at = &member.pressure().asked_at;
            asked_at.store(0, Ordering::Relaxed);
            assert!(scratch.ask(&askable, demand(UNIT)));
            scratch.pressure(&askable).demands()
        };
        let count = &member.pressure().count;
        // Other members can write any count.
        for start in [0, 7, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX - 2] {
            count.store(start, Ordering::Relaxed);
            member.answer(start, Answer::Enough);
            assert_eq!(
                scratch.pressure(&askable).answer(start),
                Some(Answer::Enough)
            );
            let (one, two) = (ask(), ask());
            if start != u64::MAX >> 1 {
                assert_eq!(scratch.pressure(&askable).answer(one), None, "{start}");
            }
            member.answer(one, Answer::TooLittle);
            assert_eq!(
                scratch.pressure(&askable).answer(one),
                Some(Answer::TooLittle)
            );
            assert_eq!(scratch.pressure(&askable).answer(two), None, "{start}");
            member.answer(two, Answer::Enough);
            assert_eq!(scratch.pressure(&askable).answer(one), Some(Answer::Enough));
            count.store(0, Ordering::Relaxed);
            assert!(scratch.pressure(&askable).answer(two).is_some(), "set back");
        }
    }

    #[test]
    fn a_new_owner_of_a_slot_is_not_registered() {
        let scratch = Scratch::new();
        let member = scratch.join();
        let index = member.index();
        member.register(&member, true);
        drop(member);
        let next = scratch.join();
        assert_eq!(next.index(), index);
        next.word(scratch.device).store(5, Ordering::Relaxed);
        assert!(scratch.askable(scratch.device, &scratch, None).is_empty());
    }

    #[test]
    fn a_sleeping_member_is_woken() {
        let scratch = Scratch::new();
        let member = scratch.join();
        member.word(scratch.device).store(5, Ordering::Relaxed);
        member.register(&member, true);
        let hang = Duration::from_secs(60);
        let seen = member.pressure().demands();
        assert_eq!(member.take_demand(), None);
        let wanted = Demand {
            device: scratch.device,
            ..demand(UNIT)
        };
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| member.await_demand(seen, hang));
            let askable = scratch.askable(scratch.device, &scratch, None);
            assert!(scratch.ask(&askable[0], wanted));
            assert!(!scratch.ask(&askable[0], wanted), "asked a moment ago");
            sleeper.join().expect("thread");
        });
        assert_eq!(member.take_demand(), Some(wanted));
        assert!(
            scratch
                .readonly()
                .askable(scratch.device, &scratch, None)
                .len()
                == 1
        );
    }
}

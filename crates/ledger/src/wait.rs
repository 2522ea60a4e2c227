//! Waiting in line for memory of a full group.
//!
//! A waiting process draws a number and writes it into its slot. Processes with lower numbers for
//! the same device go first. No waiter holds a lock, dead waiters do not count, and stopped waiters
//! are skipped after a while.
//!
//! First contexts (see `entry`) have a line of their own, behind that of the others.
//!
//! A process that gives memory back lowers its charge, then reads the word `waiting`. A waiter sets
//! `waiting`, then reads the charges. At least one of the two sees the change of the other, so no
//! waiter sleeps while there is room for it.

use super::atomic::{AtomicU64, Ordering, Word, fence};
use super::charge::granted;
use super::layout::{SlotPage, Waiting};
use super::{DeviceIndex, Ledger, Slot, os, owner};
use std::time::{Duration, Instant};

/// Longest time that a waiter sleeps before it checks its place in line again. Some changes, such
/// as a member's death, wake no waiter.
const NAP: Duration = Duration::from_millis(100);
/// Milliseconds after which other processes skip a waiter that has not checked its place in line.
const ABSENT_MS: u64 = 2_000;
/// Milliseconds after which members that all wait, while no charge changes, wait for each other.
const STILL_MS: u64 = 1_000;
/// The bit in the word for the device of a request that waits with a first context. Also what such
/// a waiter adds to `Signals::waiting`: it does not make the requests of others wait.
const FIRST: u64 = 1 << 32;

/// The answer to a waiting process that asks whether it is allowed to try to charge.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Turn {
    /// The process is first in line and is allowed to try to charge.
    Yes,
    /// Another process with a lower number comes first.
    NotYet,
    /// The time for which the process is allowed to wait is over.
    Over,
}

/// How often a reader reads a request again that has changed meanwhile.
const READINGS: u32 = 8;

/// The words of a slot that tell of a waiting request.
pub(super) struct Request<'a, W> {
    /// The request's number in line; 0 if no request waits.
    pub ticket: &'a W,
    pub device: &'a W,
    pub bytes: &'a W,
    pub since: &'a W,
}

impl<'a> Request<'a, AtomicU64> {
    pub(super) fn of(waiting: &'a Waiting) -> Self {
        let Waiting {
            ticket,
            device,
            bytes,
            since,
            ..
        } = waiting;
        Self {
            ticket,
            device,
            bytes,
            since,
        }
    }
}

impl<W: Word> Request<'_, W> {
    /// Writes a request's number, device, bytes and time. The number comes last: a reader that sees
    /// it sees the figures.
    pub(super) fn write(&self, ticket: u64, figures: [u64; 3]) {
        // A reader that sees a new figure beside the old number also sees that the number has
        // changed.
        W::fence(Ordering::Release);
        let words = [self.device, self.bytes, self.since];
        for (word, figure) in words.into_iter().zip(figures) {
            word.store(figure, Ordering::Relaxed);
        }
        self.ticket.store(ticket, Ordering::Release);
    }

    /// Removes the request.
    pub(super) fn erase(&self) {
        self.ticket.store(0, Ordering::Release);
    }

    /// Returns the device, the bytes and the time of one request; `None` if no request waits.
    pub(super) fn read(&self) -> Option<[u64; 3]> {
        for _ in 0..READINGS {
            let ticket = self.ticket.load(Ordering::Acquire);
            if ticket == 0 {
                break;
            }
            let words = [self.device, self.bytes, self.since];
            let figures = words.map(|word| word.load(Ordering::Relaxed));
            W::fence(Ordering::Acquire);
            if self.ticket.load(Ordering::Relaxed) == ticket {
                return Some(figures);
            }
        }
        None
    }
}

/// The place of a request in a group's line of waiting requests. Dropping it ends the wait.
pub struct Line<'a> {
    slot: &'a Slot,
    device: DeviceIndex,
    ticket: u64,
    until: Instant,
    is_first: bool,
    /// The count `Signals::returned` just before the waiter last read the charges.
    returned: u64,
}

impl<'a> Line<'a> {
    /// Takes the last place in line. A process has only one place in a group's line. Returns `None`
    /// if another thread of this process already waits there.
    pub fn join(slot: &'a Slot, device: DeviceIndex, bytes: u64, until: Instant) -> Option<Self> {
        Self::join_as(slot, device, bytes, until, false)
    }

    /// Takes the last place in the line of first contexts. The requests of others do not wait for
    /// these, and these wait for all of them.
    pub fn join_first(
        slot: &'a Slot,
        device: DeviceIndex,
        bytes: u64,
        until: Instant,
    ) -> Option<Self> {
        Self::join_as(slot, device, bytes, until, true)
    }

    fn join_as(
        slot: &'a Slot,
        device: DeviceIndex,
        bytes: u64,
        until: Instant,
        is_first: bool,
    ) -> Option<Self> {
        let ticket = slot
            .ledger()
            .signals()
            .tickets
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        if !slot.enter_line() {
            return None;
        }
        let (waiting, now) = (slot.waiting(), os::boot_ms());
        waiting.seen.store(now, Ordering::Relaxed);
        let first = if is_first { FIRST } else { 0 };
        Request::of(waiting).write(ticket, [device.get() as u64 | first, bytes, now]);
        let line = Self {
            slot,
            device,
            ticket,
            until,
            is_first,
            returned: 0,
        };
        Some(line)
    }

    /// Returns whether it is the waiter's turn, and tells other processes that somebody waits. Call
    /// before every attempt to charge.
    pub fn turn(&mut self) -> Turn {
        let ledger = self.slot.ledger();
        let signals = ledger.signals();
        self.slot
            .waiting()
            .seen
            .store(os::boot_ms(), Ordering::Relaxed);
        self.returned = signals.returned.load(Ordering::SeqCst);
        // Every call changes `waiting`, because other processes clear the word only if it has not
        // changed meanwhile.
        let one = if self.is_first { FIRST } else { 1 };
        signals.waiting.fetch_add(one, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let own = self.slot.index();
        let is_before = |device, ticket| waiters(ledger, own, device, ticket).next().is_some();
        let device = self.device.get() as u64;
        if os::now() >= self.until {
            Turn::Over
        } else if self.is_first
            && (is_before(device, u64::MAX) || is_before(device | FIRST, self.ticket))
            || !self.is_first && is_before(device, self.ticket)
        {
            Turn::NotYet
        } else {
            Turn::Yes
        }
    }

    /// Tells readers that the request waits for this many bytes from now on.
    pub fn note_bytes(&self, bytes: u64) {
        self.slot.waiting().bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sleeps until another process gives memory back, but only for a bounded time.
    pub fn sleep(&self) {
        let left = self.until.saturating_duration_since(os::now());
        let signals = self.slot.ledger().signals();
        os::futex_wait(&signals.returned, self.returned as u32, left.min(NAP));
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        Request::of(self.slot.waiting()).erase();
        self.slot.leave_line();
        // Now the next waiter is first in line and may try to charge, so all waiters are woken.
        wake(self.slot.ledger());
    }
}

impl Ledger {
    /// Returns the bytes that the requests of other processes wait for. Any member can write them.
    pub fn awaited(&self, slot: &Slot, device: DeviceIndex) -> u64 {
        let waiters = waiters(self, slot.index(), device.get() as u64, u64::MAX);
        let bytes = waiters.map(|waiting| waiting.bytes.load(Ordering::Relaxed));
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns whether another process waits for memory of the device, so that new requests must
    /// queue. Clears `waiting`, but for first contexts, if no other process waits.
    pub fn somebody_waits(&self, slot: &Slot, device: DeviceIndex) -> bool {
        let waiting = &self.signals().waiting;
        let before = waiting.load(Ordering::SeqCst);
        if before as u32 == 0 {
            return false;
        }
        let any = |device: DeviceIndex| {
            let mut waiters = waiters(self, slot.index(), device.get() as u64, u64::MAX);
            waiters.next().is_some()
        };
        if any(device) {
            return true;
        }
        if !DeviceIndex::all().any(any) {
            // If a process has begun to wait meanwhile, it has changed `waiting`, and this exchange
            // fails.
            let first = before & !u64::from(u32::MAX);
            let _ = waiting.compare_exchange(before, first, Ordering::SeqCst, Ordering::Relaxed);
        }
        false
    }
}

/// Returns the requests of other living processes whose word for the device is this, with a number
/// below `ticket`.
fn waiters(
    ledger: &Ledger,
    own: usize,
    device: u64,
    ticket: u64,
) -> impl Iterator<Item = &Waiting> {
    let mut file = None;
    let now = os::boot_ms();
    let others = (0..ledger.high_water()).filter(move |index| *index != own);
    others.filter_map(move |index| {
        let waiting = &ledger.content().slots[index].waiting;
        let theirs = waiting.ticket.load(Ordering::Acquire);
        if theirs == 0
            || theirs >= ticket
            || waiting.device.load(Ordering::Relaxed) != device
            || is_absent(waiting, now)
        {
            return None;
        }
        // A dead waiter's number stays until the slot is cleaned. The owner lock shows whether the
        // waiter is alive.
        let file = file.get_or_insert_with(|| ledger.place.open(false).ok());
        let is_dead = file
            .as_ref()
            .is_some_and(|file| owner::is_dead(file, index));
        (!is_dead).then_some(waiting)
    })
}

/// Adds the wait of a dead process to the group's statistics, up to the process's last look at its
/// place in line. The caller holds the slot's claim lock.
pub(super) fn count_dead(ledger: &Ledger, slot: usize) {
    let Waiting {
        ticket,
        device,
        seen,
        since,
        ..
    } = &ledger.content().slots[slot].waiting;
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
    if word(ticket) == 0 {
        return;
    }
    if let Some(device) = DeviceIndex::new(word(device) as u32 as usize) {
        // Any member can write these words.
        let waited = word(seen).saturating_sub(word(since)).min(os::boot_ms());
        ledger.note_wait(device, Duration::from_millis(waited));
    }
}

/// Since when a waiting process stands still: it makes no other call, and no charge of the group
/// changes. Other members see that in the slots of the process.
pub struct Standstill {
    asks_since: u64,
    since: u64,
    /// A hash of the charges at the last look.
    charges: u64,
}

impl Standstill {
    /// Begins when a request begins to wait.
    pub fn begin() -> Self {
        let now = os::boot_ms();
        Self {
            asks_since: now,
            since: now,
            charges: 0,
        }
    }

    /// Looks at the charges of the device. `has_calls`: this process makes other calls.
    pub fn look(&mut self, ledger: &Ledger, device: DeviceIndex, has_calls: bool) {
        let words = ledger.charges(device, ledger.high_water() as u64);
        let charges = words.fold(0u64, |hash, charge| {
            let units = granted(charge.word.load(Ordering::Relaxed));
            (hash.rotate_left(7) ^ units).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        if has_calls || charges != self.charges {
            (self.since, self.charges) = (os::boot_ms(), charges);
        }
    }

    /// Shows the standstill in this slot.
    pub fn show(&self, slot: &Slot) {
        let waiting = slot.waiting();
        waiting.still_since.store(self.since, Ordering::Relaxed);
        (waiting.still_seen).store(os::boot_ms(), Ordering::Relaxed);
        (waiting.asks_since).store(self.asks_since, Ordering::Release);
    }

    /// Removes what [`Standstill::show`] has written.
    pub fn end(slot: &Slot) {
        slot.waiting().asks_since.store(0, Ordering::Release);
    }

    /// Returns whether all members that hold memory stand still, of the device or of any, so that
    /// none of them will give memory back, and this process has waited the shortest of them. A
    /// suspended member gives nothing back, either: its reserve stays charged.
    pub fn is_for_ever(&self, slot: &Slot, device: DeviceIndex) -> bool {
        let ledger = slot.ledger();
        let is_suspended =
            |index| DeviceIndex::all().any(|device| ledger.suspended(index, device) > 0);
        let holds = |index: usize, device| {
            let word = ledger.word(index, device).load(Ordering::Relaxed);
            granted(word) > 0 && (index == slot.index() || !is_suspended(index))
        };
        self.stops_all(slot, |index| holds(index, device))
            || self.stops_all(slot, |index| DeviceIndex::all().any(|it| holds(index, it)))
    }

    fn stops_all(&self, slot: &Slot, holds: impl Fn(usize) -> bool) -> bool {
        let (ledger, own, now) = (slot.ledger(), slot.index(), os::boot_ms());
        let is_still = |index: usize| {
            let waiting = &ledger.content().slots[index].waiting;
            let asks_since = waiting.asks_since.load(Ordering::Acquire);
            let age = |word: &AtomicU64| now.saturating_sub(word.load(Ordering::Relaxed));
            asks_since != 0
                && age(&waiting.still_since) >= STILL_MS
                && age(&waiting.still_seen) <= ABSENT_MS
                && (asks_since, index) <= (self.asks_since, own)
        };
        let holders = || (0..ledger.high_water()).filter(|index| holds(*index));
        holds(own)
            && holders().all(is_still)
            && (ledger.place.open(false)).is_ok_and(|file| {
                let mut others = holders().filter(|index| *index != own);
                !others.any(|index| owner::is_dead(&file, index))
            })
    }
}

/// Returns whether other processes skip a waiter: it has not checked its place for too long.
fn is_absent(waiting: &Waiting, now: u64) -> bool {
    now.saturating_sub(waiting.seen.load(Ordering::Relaxed)) > ABSENT_MS
}

impl Ledger {
    /// Wakes the waiting processes, because a member has answered. Costs one load if no process
    /// waits.
    pub fn wake_waiters(&self) {
        returned(self);
    }
}

/// Wakes the waiting processes after memory was given back. Costs one load if no process waits.
#[inline]
pub(super) fn returned(ledger: &Ledger) {
    if ledger.signals().waiting.load(Ordering::SeqCst) != 0 {
        wake(ledger);
    }
}

#[cold]
fn wake(ledger: &Ledger) {
    let signals = ledger.signals();
    let waiting = signals.waiting.load(Ordering::SeqCst);
    signals.returned.fetch_add(1, Ordering::SeqCst);
    let is_in_line = |slot: &SlotPage| slot.waiting.ticket.load(Ordering::Acquire) != 0;
    // A waiter that is about to check its place again is still in line, although no thread sleeps
    // on the futex.
    if os::futex_wake_all(&signals.returned) == 0
        && !ledger.content().slots[..ledger.high_water()]
            .iter()
            .any(is_in_line)
    {
        // The exchange fails if a process has begun to wait meanwhile. A later waiter sets the word
        // anew.
        let _ = signals
            .waiting
            .compare_exchange(waiting, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::{Knows, Scratch, stranger};

    fn later() -> Instant {
        os::now() + Duration::from_secs(3600)
    }

    #[test]
    fn waiters_for_a_device_go_in_the_order_of_their_numbers() {
        let scratch = Scratch::new();
        let (device, other) = (scratch.device, scratch.other);
        let slots = [
            scratch.join(),
            scratch.join(),
            scratch.join(),
            scratch.join(),
        ];
        assert!(!scratch.has_waiters());
        assert!(!scratch.somebody_waits(&slots[0], device));
        let join =
            |at: usize, device| Line::join(&slots[at], device, 4096, later()).expect("a place");
        let (mut first, mut second, mut third) = (join(2, device), join(0, device), join(1, other));
        assert_eq!(scratch.awaited(&slots[3], device), 2 * 4096);
        assert_eq!(scratch.awaited(&slots[2], device), 4096, "but its own");
        assert_eq!(scratch.awaited(&slots[2], other), 4096);
        let bytes = &slots[0].waiting().bytes;
        bytes.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(scratch.awaited(&slots[3], device), u64::MAX, "hostile");
        bytes.store(4096, Ordering::Relaxed);
        assert_eq!(first.turn(), Turn::Yes);
        assert_eq!((second.turn(), third.turn()), (Turn::NotYet, Turn::Yes));
        assert!(scratch.has_waiters());
        assert!(
            Line::join(&slots[0], other, 4096, later()).is_none(),
            "a process has only one place in line"
        );
        assert!(scratch.somebody_waits(&slots[3], device));
        // A second request of the first process in line has to wait behind the other waiters.
        assert!(scratch.somebody_waits(&slots[2], device));
        assert!(!scratch.somebody_waits(&slots[1], other), "its own request");
        drop(first);
        assert_eq!(second.turn(), Turn::Yes);
        drop((second, third));
        assert!(
            Line::join(&slots[0], other, 4096, later()).is_some(),
            "the process may take a place again"
        );
    }

    #[test]
    fn the_word_for_waiters_is_cleared_when_the_last_one_is_gone() {
        let scratch = Scratch::new();
        let (slot, waiter) = (scratch.join(), scratch.join());
        let mut line = Line::join(&waiter, scratch.other, 4096, later()).expect("a place");
        line.turn();
        assert!(!scratch.somebody_waits(&slot, scratch.device));
        assert!(scratch.has_waiters(), "a process waits for another device");
        waiter.waiting().ticket.store(0, Ordering::Relaxed);
        assert!(!scratch.somebody_waits(&slot, scratch.device));
        assert!(!scratch.has_waiters());
    }

    #[test]
    fn dead_and_absent_waiters_are_skipped() {
        let scratch = Scratch::new();
        let (slot, absent) = (scratch.join(), scratch.join());
        let dead = scratch.dead(&stranger(1), 1, 0);
        let waiting = &scratch.content().slots[dead].waiting;
        waiting.ticket.store(1, Ordering::Relaxed);
        waiting
            .device
            .store(scratch.device.get() as u64, Ordering::Relaxed);
        waiting.seen.store(os::boot_ms(), Ordering::Relaxed);
        scratch.signals().waiting.store(1, Ordering::Relaxed);
        assert!(!scratch.somebody_waits(&slot, scratch.device), "dead");
        let mut line = Line::join(&absent, scratch.device, 4096, later()).expect("a place");
        line.turn();
        assert!(scratch.somebody_waits(&slot, scratch.device));
        let seen = &absent.waiting().seen;
        seen.store(os::boot_ms() - ABSENT_MS - 1, Ordering::Relaxed);
        assert!(!scratch.somebody_waits(&slot, scratch.device), "stopped");
        line.turn();
        seen.store(os::boot_ms() + 60_000, Ordering::Relaxed);
        assert!(
            scratch.somebody_waits(&slot, scratch.device),
            "a waiter whose recorded time is in the future counts"
        );
    }

    #[test]
    fn the_wait_of_a_killed_process_counts_up_to_its_last_look() {
        let scratch = Scratch::new();
        let dead = scratch.dead(&stranger(1), 1, 0);
        let waiting = &scratch.content().slots[dead].waiting;
        let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        store(&waiting.ticket, 1);
        store(&waiting.device, scratch.device.get() as u64);
        store(&waiting.since, 5_000);
        store(&waiting.seen, 8_500);
        for _ in 0..2 {
            scratch.clean(&Knows(Some(false)));
            let usage = scratch.usage(scratch.device);
            assert_eq!((usage.waits, usage.waited_ms), (1, 3_500));
        }
        let dead = scratch.dead(&stranger(2), 0, 0);
        let waiting = &scratch.content().slots[dead].waiting;
        store(&waiting.ticket, 1);
        store(&waiting.device, u64::MAX);
        scratch.clean(&Knows(Some(false)));
        assert_eq!(scratch.usage(scratch.device).waits, 1, "not possible");
    }

    #[test]
    fn first_contexts_wait_for_all_and_requests_for_no_first_context() {
        let scratch = Scratch::new();
        let slots = [0; 4].map(|_| scratch.join());
        let join_first = |slot| Line::join_first(slot, scratch.device, 4096, later());
        let mut one = join_first(&slots[0]).expect("a place");
        let mut two = join_first(&slots[1]).expect("a place");
        assert_eq!((one.turn(), two.turn()), (Turn::Yes, Turn::NotYet));
        assert!(!scratch.has_waiters() && !scratch.somebody_waits(&slots[3], scratch.device));
        let mut request = Line::join(&slots[2], scratch.device, 4096, later()).expect("a place");
        assert_eq!((request.turn(), one.turn()), (Turn::Yes, Turn::NotYet));
        assert!(scratch.somebody_waits(&slots[3], scratch.device));
        let returned = || scratch.signals().returned.load(Ordering::Relaxed);
        let before = returned();
        drop(request);
        assert!(!scratch.somebody_waits(&slots[3], scratch.device));
        assert!(!scratch.has_waiters());
        super::returned(&scratch);
        assert_eq!(returned(), before + 2, "first contexts are still woken");
        assert_eq!(one.turn(), Turn::Yes);
        drop(one);
        assert_eq!(two.turn(), Turn::Yes);
    }

    /// A process that holds memory, and has waited and stood still for these milliseconds.
    fn still(slot: &Slot, device: DeviceIndex, waited: u64, still: u64) -> Standstill {
        slot.word(device).store(1, Ordering::Relaxed);
        let now = os::boot_ms();
        let still = Standstill {
            asks_since: now - waited,
            since: now - still,
            charges: 0,
        };
        still.show(slot);
        still
    }

    #[test]
    fn the_last_of_members_that_all_stand_still_waits_for_ever() {
        let scratch = Scratch::new();
        let (one, two, other) = (scratch.join(), scratch.join(), scratch.join());
        let device = scratch.device;
        let a = still(&one, device, 9_000, STILL_MS);
        let b = still(&two, device, 8_000, STILL_MS);
        let verdict = || (a.is_for_ever(&one, device), b.is_for_ever(&two, device));
        assert_eq!(verdict(), (false, true));
        // A member that holds memory and does not wait, elsewhere and here.
        other.word(scratch.other).store(1, Ordering::Relaxed);
        assert_eq!(verdict(), (false, true));
        other.word(device).store(1, Ordering::Relaxed);
        assert_eq!(verdict(), (false, false));
        let suspended = &other.stats(scratch.other).suspended;
        suspended.store(1, Ordering::Relaxed);
        assert_eq!(verdict(), (false, true), "its reserve alone is charged");
        suspended.store(0, Ordering::Relaxed);
        for (waited, stands, seen) in [(8_500, 10, 0), (8_500, STILL_MS, ABSENT_MS + 1_000)] {
            still(&other, device, waited, stands);
            let looked = &other.waiting().still_seen;
            looked.store(os::boot_ms() - seen, Ordering::Relaxed);
            assert_eq!(verdict(), (false, false), "{stands} {seen}");
        }
        still(&other, device, 8_500, STILL_MS);
        assert_eq!(verdict(), (false, true));
        Standstill::end(&one);
        assert_eq!(verdict(), (false, false));
        // A dead member's memory comes back.
        a.show(&one);
        let dead = scratch.dead(&stranger(1), 1, 0);
        let words = &scratch.content().slots[dead].waiting;
        for (word, other) in [
            (&words.asks_since, &one.waiting().asks_since),
            (&words.still_since, &one.waiting().still_since),
            (&words.still_seen, &one.waiting().still_seen),
        ] {
            word.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        assert_eq!(verdict(), (false, false));
    }

    #[test]
    fn members_that_wait_for_each_other_on_two_devices_wait_for_ever() {
        let scratch = Scratch::new();
        let (one, two) = (scratch.join(), scratch.join());
        let a = still(&one, scratch.device, 9_000, STILL_MS);
        let b = still(&two, scratch.other, 8_000, STILL_MS);
        assert!(!a.is_for_ever(&one, scratch.other));
        assert!(b.is_for_ever(&two, scratch.device));
    }

    #[test]
    fn calls_and_changes_of_charges_end_a_standstill() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let since = os::boot_ms() - 5_000;
        let mut still = Standstill {
            asks_since: since,
            since,
            charges: 0,
        };
        let mut moves = |has_calls| {
            still.look(&scratch, scratch.device, has_calls);
            let moved = still.since > since;
            still.since = since;
            moved
        };
        moves(false);
        assert!(!moves(false) && moves(true) && !moves(false));
        let word = slot.word(scratch.device);
        word.store(1, Ordering::Relaxed);
        assert!(moves(false) && !moves(false));
        // An undecided request is no change: others that wait try again and again.
        word.store((1 << 32) | 2, Ordering::Relaxed);
        assert!(!moves(false));
    }

    #[test]
    fn a_waiter_whose_time_is_over_has_no_turn() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let until = os::now() + Duration::from_millis(20);
        let mut line = Line::join(&slot, scratch.device, 4096, until).expect("a place");
        line.turn();
        line.sleep();
        assert!(os::now() >= until, "woken too early");
        assert_eq!(line.turn(), Turn::Over);
    }

    #[test]
    fn returned_memory_wakes_a_sleeping_waiter() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let returned = || scratch.signals().returned.load(Ordering::Relaxed);
        super::returned(&scratch);
        assert_eq!(returned(), 0, "no process waits");
        let mut line = Line::join(&slot, scratch.device, 4096, later()).expect("a place");
        line.turn();
        super::returned(&scratch);
        assert_eq!(returned(), 1);
        // The sleep ends at once, because memory was given back after the last call of `turn`.
        line.sleep();
        assert!(scratch.has_waiters(), "the waiter is still in line");
        line.turn();
        assert_eq!(line.returned, 1, "the waiter has seen the returned memory");
        drop(line);
        assert_eq!(returned(), 2, "the next waiter is woken");
        assert!(!scratch.has_waiters(), "no waiter is left");
    }
}

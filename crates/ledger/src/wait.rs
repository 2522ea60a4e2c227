//! Waiting for memory, in line.
//!
//! Who waits draws a number, writes it into its own slot and looks whether somebody with a lower
//! one waits for the same device. Nobody holds anything that others need: the line is what the
//! slots of living owners say, and a waiter that has not looked for a while, because it was
//! stopped, is passed by.
//!
//! Who gives memory back looks at one word after its charge is gone; a waiter sets the word before
//! it looks at the charges. So one of them sees the other, and a waiter that sleeps is woken.

use super::atomic::{Ordering, fence};
use super::layout::{SlotPage, Waiting};
use super::{DeviceIndex, Ledger, Slot, os, owner};
use std::time::{Duration, Instant};

/// How long a waiter sleeps at most before it looks again: for what nobody wakes it, such as the
/// death of a member.
const NAP: Duration = Duration::from_millis(100);
/// Who has not looked for so long is passed by.
const ABSENT_MS: u64 = 2_000;

/// Whether a waiter may try.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Turn {
    /// Nobody before it.
    Yes,
    /// Not yet.
    NotYet,
    /// The time is over.
    Over,
}

/// A request in the line of one level, until drop.
pub struct Line<'a> {
    slot: &'a Slot,
    device: DeviceIndex,
    ticket: u64,
    until: Instant,
    /// What [`Signals::returned`] was when the charges were last looked at.
    returned: u64,
}

impl<'a> Line<'a> {
    /// Takes a place at the end. `None` while another thread of this process waits in the same
    /// group: a process has one place.
    pub fn join(slot: &'a Slot, device: DeviceIndex, until: Instant) -> Option<Self> {
        let ticket = slot
            .ledger()
            .signals()
            .tickets
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        let waiting = slot.waiting();
        if waiting.ticket.load(Ordering::Relaxed) != 0 {
            return None;
        }
        waiting.seen.store(os::boot_ms(), Ordering::Relaxed);
        waiting
            .ticket
            .compare_exchange(0, ticket, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        waiting.device.store(device.get() as u64, Ordering::Relaxed);
        let line = Self {
            slot,
            device,
            ticket,
            until,
            returned: 0,
        };
        Some(line)
    }

    /// To be asked before every attempt: announces that somebody waits, and says whether it is its
    /// turn.
    pub fn turn(&mut self) -> Turn {
        let ledger = self.slot.ledger();
        let signals = ledger.signals();
        self.slot
            .waiting()
            .seen
            .store(os::boot_ms(), Ordering::Relaxed);
        self.returned = signals.returned.load(Ordering::SeqCst);
        // Another value each time: who finds nobody asleep may only take back what it has seen.
        signals.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if os::now() >= self.until {
            Turn::Over
        } else if is_before(ledger, self.slot.index(), self.device, self.ticket) {
            Turn::NotYet
        } else {
            Turn::Yes
        }
    }

    /// Sleeps until memory comes back, for a bounded time.
    pub fn sleep(&self) {
        let left = self.until.saturating_duration_since(os::now());
        let signals = self.slot.ledger().signals();
        os::futex_wait(&signals.returned, self.returned as u32, left.min(NAP));
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.slot.waiting().ticket.store(0, Ordering::Release);
        // The next in line need not wait for memory to come back.
        wake(self.slot.ledger());
    }
}

impl Ledger {
    /// Whether another process waits for memory of the device, as it did a moment ago: then a
    /// request of this slot that has not waited yet has to stand in line. Where nobody waits for
    /// any device, that is noted.
    pub fn somebody_waits(&self, slot: &Slot, device: DeviceIndex) -> bool {
        let waiting = &self.signals().waiting;
        let before = waiting.load(Ordering::SeqCst);
        if before == 0 {
            return false;
        }
        let any = |device| is_before(self, slot.index(), device, u64::MAX);
        if any(device) {
            return true;
        }
        if !DeviceIndex::all().any(any) {
            // Who has come meanwhile has changed the word.
            let _ = waiting.compare_exchange(before, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
        false
    }
}

/// Whether somebody living with a lower number waits for the device.
fn is_before(ledger: &Ledger, own: usize, device: DeviceIndex, ticket: u64) -> bool {
    let mut file = None;
    let now = os::boot_ms();
    for index in (0..ledger.high_water()).filter(|index| *index != own) {
        let waiting = &ledger.content().slots[index].waiting;
        let theirs = waiting.ticket.load(Ordering::Acquire);
        if theirs == 0
            || theirs >= ticket
            || waiting.device.load(Ordering::Relaxed) != device.get() as u64
            || is_absent(waiting, now)
        {
            continue;
        }
        // Of the dead nobody takes the number away before their slot is cleaned.
        let file = file.get_or_insert_with(|| ledger.place.open(false).ok());
        if !file
            .as_ref()
            .is_some_and(|file| owner::is_dead(file, index))
        {
            return true;
        }
    }
    false
}

/// Whether a waiter has not looked for so long that it is passed by.
fn is_absent(waiting: &Waiting, now: u64) -> bool {
    now.saturating_sub(waiting.seen.load(Ordering::Relaxed)) > ABSENT_MS
}

/// After memory was given back: wakes those who wait. One load where nobody does.
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
    // Who is awake and about to look again is still in line.
    if os::futex_wake_all(&signals.returned) == 0
        && !ledger.content().slots[..ledger.high_water()]
            .iter()
            .any(is_in_line)
    {
        // Who has come meanwhile has changed the word, or will.
        let _ = signals
            .waiting
            .compare_exchange(waiting, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::{Scratch, stranger};

    fn later() -> Instant {
        os::now() + Duration::from_secs(3600)
    }

    #[test]
    fn who_came_first_goes_first_on_his_device() {
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
        let join = |at: usize, device| Line::join(&slots[at], device, later()).expect("a place");
        let (mut first, mut second, mut third) = (join(2, device), join(0, device), join(1, other));
        assert_eq!(first.turn(), Turn::Yes);
        assert_eq!((second.turn(), third.turn()), (Turn::NotYet, Turn::Yes));
        assert!(scratch.has_waiters());
        assert!(
            Line::join(&slots[0], other, later()).is_none(),
            "one place each"
        );
        assert!(scratch.somebody_waits(&slots[3], device));
        // One that does not wait itself is behind all, also of its own process.
        assert!(scratch.somebody_waits(&slots[2], device));
        assert!(!scratch.somebody_waits(&slots[1], other), "its own request");
        drop(first);
        assert_eq!(second.turn(), Turn::Yes);
        drop((second, third));
        assert!(
            Line::join(&slots[0], other, later()).is_some(),
            "free again"
        );
    }

    #[test]
    fn that_nobody_waits_any_longer_is_noted() {
        let scratch = Scratch::new();
        let (slot, waiter) = (scratch.join(), scratch.join());
        let mut line = Line::join(&waiter, scratch.other, later()).expect("a place");
        line.turn();
        assert!(!scratch.somebody_waits(&slot, scratch.device));
        assert!(scratch.has_waiters(), "for another device");
        waiter.waiting().ticket.store(0, Ordering::Relaxed);
        assert!(!scratch.somebody_waits(&slot, scratch.device));
        assert!(!scratch.has_waiters());
    }

    #[test]
    fn the_dead_and_the_absent_are_passed_by() {
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
        let mut line = Line::join(&absent, scratch.device, later()).expect("a place");
        line.turn();
        assert!(scratch.somebody_waits(&slot, scratch.device));
        let seen = &absent.waiting().seen;
        seen.store(os::boot_ms() - ABSENT_MS - 1, Ordering::Relaxed);
        assert!(!scratch.somebody_waits(&slot, scratch.device), "stopped");
        line.turn();
        seen.store(os::boot_ms() + 60_000, Ordering::Relaxed);
        assert!(
            scratch.somebody_waits(&slot, scratch.device),
            "by another clock"
        );
    }

    #[test]
    fn when_the_time_is_over_it_is_nobodys_turn() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let until = os::now() + Duration::from_millis(20);
        let mut line = Line::join(&slot, scratch.device, until).expect("a place");
        line.turn();
        line.sleep();
        assert!(os::now() >= until, "nobody has woken it");
        assert_eq!(line.turn(), Turn::Over);
    }

    #[test]
    fn who_sleeps_is_woken_by_what_comes_back() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let returned = || scratch.signals().returned.load(Ordering::Relaxed);
        super::returned(&scratch);
        assert_eq!(returned(), 0, "nobody waits");
        let mut line = Line::join(&slot, scratch.device, later()).expect("a place");
        line.turn();
        super::returned(&scratch);
        assert_eq!(returned(), 1);
        // What has come before it ends it.
        line.sleep();
        assert!(scratch.has_waiters(), "it is awake, and in line");
        line.turn();
        assert_eq!(line.returned, 1, "what it has seen it does not wait for");
        drop(line);
        assert_eq!(returned(), 2, "the next in line looks");
        assert!(!scratch.has_waiters(), "there is none");
    }
}

//! Waiting for memory, in line.
//!
//! Who waits draws a number, writes it into its own slot and looks whether somebody with a lower one waits for the same device. Nobody holds
//! anything that others need: the line is what the slots of living owners say, and a waiter that has not looked for a while, because it was
//! stopped, is passed by.
//!
//! Who gives memory back looks at one word after its charge is gone; a waiter sets the word before it looks at the charges. So one
//! of them sees the other, and a waiter that sleeps is woken.

use super::atomic::{Ordering, fence};
use super::layout::{Signals, Waiting};
use super::lock::{self, Bytes};
use super::{DeviceIndex, Ledger, Slot, os};
use std::time::{Duration, Instant};

/// How long a waiter sleeps at most before it looks again: for what nobody wakes it, such as the death of a member.
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
    /// The time is over, or a signal came.
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
    /// Takes a place at the end. `None` while another thread of this process waits in the same group: a process has one place.
    pub fn join(slot: &'a Slot, device: DeviceIndex, until: Instant) -> Option<Self> {
        let signals = signals(slot.ledger());
        let ticket = signals.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting = slot.waiting();
        let before = waiting.ticket.load(Ordering::Relaxed);
        let now = os::boot_ms();
        // Left behind by a thread that has jumped out of its wait (`siglongjmp`), if nobody has looked for so long.
        if before != 0 && !is_absent(waiting, now) {
            return None;
        }
        waiting.seen.store(now, Ordering::Relaxed);
        waiting
            .ticket
            .compare_exchange(before, ticket, Ordering::AcqRel, Ordering::Relaxed)
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

    /// To be asked before every attempt: announces that somebody waits, and says whether it is its turn.
    pub fn turn(&mut self) -> Turn {
        let ledger = self.slot.ledger();
        let signals = signals(ledger);
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

    /// Sleeps until memory comes back, for a bounded time. [`Turn::Over`] when the time is over or a signal came.
    pub fn sleep(&self) -> Turn {
        let left = self.until.saturating_duration_since(os::now());
        if left.is_zero() {
            return Turn::Over;
        }
        let signals = signals(self.slot.ledger());
        match os::futex_wait(&signals.returned, self.returned as u32, left.min(NAP)) {
            os::Woken::BySignal => Turn::Over,
            os::Woken::Other => Turn::NotYet,
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let waiting = self.slot.waiting();
        // Unless another thread has taken the place over, while this one could not look.
        let _ =
            waiting
                .ticket
                .compare_exchange(self.ticket, 0, Ordering::Release, Ordering::Relaxed);
        // The next in line need not wait for memory to come back.
        wake(self.slot.ledger());
    }
}

/// Whether a request that has not waited yet has to stand in line. Where nobody waits any longer, that is noted.
pub(super) fn somebody_waits(ledger: &Ledger, own: usize, device: DeviceIndex) -> bool {
    let waiting = &signals(ledger).waiting;
    let before = waiting.load(Ordering::SeqCst);
    if before == 0 {
        return false;
    }
    let any = |device| is_before(ledger, own, device, u64::MAX);
    if any(device) {
        return true;
    }
    if !DeviceIndex::all().any(any) {
        // Who has come meanwhile has changed the word.
        let _ = waiting.compare_exchange(before, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    false
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
        if file.is_none() {
            file = ledger.place.open(false).ok();
        }
        // Of the dead nobody takes the number away before their slot is cleaned.
        let dead = file
            .as_ref()
            .is_some_and(|file| matches!(lock::is_locked(file, Bytes::owner(index)), Ok(false)));
        if !dead {
            return true;
        }
    }
    false
}

/// Whether a waiter has not looked for so long that it is passed by.
fn is_absent(waiting: &Waiting, now: u64) -> bool {
    now.saturating_sub(waiting.seen.load(Ordering::Relaxed)) > ABSENT_MS
}

fn signals(ledger: &Ledger) -> &Signals {
    &ledger.content().header.signals
}

/// After memory was given back: wakes those who wait. One load where nobody does.
#[inline]
pub(super) fn returned(ledger: &Ledger) {
    if signals(ledger).waiting.load(Ordering::SeqCst) != 0 {
        wake(ledger);
    }
}

#[cold]
fn wake(ledger: &Ledger) {
    let signals = signals(ledger);
    let waiting = signals.waiting.load(Ordering::SeqCst);
    signals.returned.fetch_add(1, Ordering::SeqCst);
    if os::futex_wake_all(&signals.returned) == 0 {
        // Nobody sleeps: they are gone, or about to look, and then they have changed the word or will.
        let _ = signals
            .waiting
            .compare_exchange(waiting, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

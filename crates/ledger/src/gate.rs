//! The gate of a process: calls of the driver that must not begin while the driver keeps the
//! process's memory on the host.
//!
//! Most calls of a suspended process wait in the driver. Some do not, and crash the process or fail
//! (measured, H100, driver 580.159.04). The process counts these calls in a word of its slot, in
//! the ledger of its own group. An actor closes the gate and waits until no such call is under way.
//!
//! The low half of the word says which calls must wait, and is a futex. The high half has the
//! numbers of calls under way. A process counts a call and reads the gate in one step. So an actor
//! that has closed the gate and sees no call knows that none begins.

use super::Ledger;
use super::atomic::{AtomicU64, Ordering};
use super::os;
use super::slot::Slot;
use gpulimit_base::identity::Identity;
use std::time::Duration;

/// The calls that the gate can hold back.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Calls {
    /// The driver makes these calls wait once it has locked the process, but not if they begin
    /// after the checkpoint. So the gate closes before the lock.
    Held,
    /// The driver answers these calls while the process is locked. Other calls may wait for their
    /// answers, and the lock for the other calls. So the gate closes after the lock.
    Answered,
}

impl Calls {
    const ALL: [Self; 2] = [Self::Held, Self::Answered];

    /// The bit of the word that makes these calls wait.
    const fn closed(self) -> u64 {
        1 << self as u32
    }

    /// One call in the word. Each kind has 16 bits for its number.
    const fn one(self) -> u64 {
        1 << (32 + 16 * self as u32)
    }

    const fn count(self, word: u64) -> u64 {
        (word / self.one()) & 0xffff
    }
}

/// How long a thread sleeps before it looks at the gate again. Opening the gate wakes it.
const NAP: Duration = Duration::from_secs(1);

/// This process's gate.
#[derive(Debug)]
pub struct Gate<'a>(&'a AtomicU64);

impl Gate<'_> {
    /// Begins a call. Waits while an actor holds such calls back.
    #[inline]
    pub fn enter(&self, calls: Calls) {
        if self.0.fetch_add(calls.one(), Ordering::SeqCst) & calls.closed() != 0 {
            self.wait(calls);
        }
    }

    /// Ends a call.
    #[inline]
    pub fn leave(&self, calls: Calls) {
        self.0.fetch_sub(calls.one(), Ordering::SeqCst);
    }

    #[cold]
    fn wait(&self, calls: Calls) {
        let is_closed = |word: u64| word & calls.closed() != 0;
        loop {
            self.leave(calls);
            loop {
                let word = self.0.load(Ordering::SeqCst);
                if !is_closed(word) {
                    break;
                }
                os::futex_wait(self.0, word as u32, NAP);
            }
            if !is_closed(self.0.fetch_add(calls.one(), Ordering::SeqCst)) {
                return;
            }
        }
    }
}

impl Slot {
    /// Returns this process's gate. It is open when the slot is claimed.
    pub fn gate(&self) -> Gate<'_> {
        Gate(&self.page().gate)
    }
}

impl Ledger {
    /// Lets the calls of a member wait that begin from now on.
    pub fn close_gate(&self, process: &Identity, calls: Calls) {
        if let Some(word) = self.gate_of(process) {
            word.fetch_or(calls.closed(), Ordering::SeqCst);
        }
    }

    /// Lets all calls of a member go on.
    pub fn open_gate(&self, process: &Identity) {
        let all = Calls::ALL.iter().fold(0, |all, calls| all | calls.closed());
        if let Some(word) = self.gate_of(process)
            && word.fetch_and(!all, Ordering::SeqCst) & all != 0
        {
            os::futex_wake_all(word);
        }
    }

    /// Returns how many of these calls of a living member are under way. A thread that was ended in
    /// the middle of a call counts for ever.
    pub fn calls_under_way(&self, process: &Identity, calls: Calls) -> u64 {
        let word = self.gate_of(process);
        word.map_or(0, |word| calls.count(word.load(Ordering::SeqCst)))
    }

    fn gate_of(&self, process: &Identity) -> Option<&AtomicU64> {
        let slot = self.slot_of(process).filter(|_| self.map.writable())?;
        Some(&self.content().slots[slot].gate)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn a_closed_gate_holds_back_its_calls_until_it_opens() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        let under_way = |calls| scratch.calls_under_way(&own, calls);
        gate.enter(Calls::Held);
        gate.enter(Calls::Answered);
        gate.enter(Calls::Answered);
        assert_eq!((under_way(Calls::Held), under_way(Calls::Answered)), (1, 2));
        scratch.close_gate(&own, Calls::Answered);
        gate.leave(Calls::Held);
        gate.enter(Calls::Held);
        gate.leave(Calls::Answered);
        gate.leave(Calls::Answered);
        assert_eq!((under_way(Calls::Held), under_way(Calls::Answered)), (1, 0));
        let is_in = AtomicBool::new(false);
        thread::scope(|scope| {
            let entering = scope.spawn(|| {
                gate.enter(Calls::Answered);
                is_in.store(true, Ordering::SeqCst);
            });
            for _ in 0..20 {
                thread::yield_now();
                assert!(!is_in.load(Ordering::SeqCst), "the gate is closed");
            }
            scratch.open_gate(&own);
            entering.join().expect("the thread ends");
        });
        assert_eq!((under_way(Calls::Held), under_way(Calls::Answered)), (1, 1));
    }

    #[test]
    fn no_call_is_under_way_once_a_closed_gate_shows_none() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        let (down, over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            for calls in [Calls::Held, Calls::Answered, Calls::Held] {
                let (gate, down, over) = (&gate, &down, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        gate.enter(calls);
                        let crashes = down.load(Ordering::SeqCst);
                        gate.leave(calls);
                        assert!(!crashes, "{calls:?}");
                    }
                });
            }
            for _ in 0..200 {
                for calls in Calls::ALL {
                    scratch.close_gate(&own, calls);
                    while scratch.calls_under_way(&own, calls) > 0 {
                        thread::yield_now();
                    }
                }
                down.store(true, Ordering::SeqCst);
                thread::yield_now();
                down.store(false, Ordering::SeqCst);
                scratch.open_gate(&own);
            }
            over.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn the_next_owner_of_a_slot_has_an_open_gate() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        slot.gate().enter(Calls::Held);
        scratch.close_gate(&Identity::of_self(), Calls::Held);
        drop(slot);
        let slot = scratch.join();
        slot.gate().enter(Calls::Held);
        assert_eq!(
            scratch.calls_under_way(&Identity::of_self(), Calls::Held),
            1
        );
    }
}

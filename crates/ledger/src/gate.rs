//! The gate of a process: calls of the driver that must not begin while the driver keeps the
//! process's memory on the host.
//!
//! Most calls of a suspended process wait in the driver. Some do not, and crash the process or fail
//! (measured, H100, driver 580.159.04). The process counts these calls in a word of its slot, in
//! the ledger of its own group. An actor closes the gate and waits until no such call is under way.
//!
//! The low half of the word is 1 while the gate is closed, and is a futex. The high half has the
//! number of calls under way. A process counts a call and reads the gate in one step. So an actor
//! that has closed the gate and sees no call knows that none begins.

use super::Ledger;
use super::atomic::{AtomicU64, Ordering};
use super::os;
use super::slot::Slot;
use gpulimit_base::identity::Identity;
use std::time::Duration;

const CLOSED: u64 = 1;
/// One call under way.
const CALL: u64 = 1 << 32;

const fn is_closed(word: u64) -> bool {
    word & CLOSED != 0
}

/// How long a thread sleeps before it looks at the gate again. Opening the gate wakes it.
const NAP: Duration = Duration::from_secs(1);

/// This process's gate.
#[derive(Debug)]
pub struct Gate<'a>(&'a AtomicU64);

impl Gate<'_> {
    /// Begins a call. Returns false if an actor holds such calls back: call [`Gate::wait`] then.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> bool {
        !is_closed(self.0.fetch_add(CALL, Ordering::SeqCst))
    }

    /// Ends a call.
    #[inline]
    pub fn leave(&self) {
        self.0.fetch_sub(CALL, Ordering::SeqCst);
    }

    /// Begins the call for which [`Gate::enter`] has returned false, once the gate is open.
    #[cold]
    pub fn wait(&self) {
        loop {
            self.leave();
            loop {
                let word = self.0.load(Ordering::SeqCst);
                if !is_closed(word) {
                    break;
                }
                os::futex_wait(self.0, word as u32, NAP);
            }
            if self.enter() {
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
    pub fn close_gate(&self, process: &Identity) {
        if let Some(word) = self.gate_of(process) {
            word.fetch_or(CLOSED, Ordering::SeqCst);
        }
    }

    /// Lets the calls of a member go on.
    pub fn open_gate(&self, process: &Identity) {
        if let Some(word) = self.gate_of(process)
            && is_closed(word.fetch_and(!CLOSED, Ordering::SeqCst))
        {
            os::futex_wake_all(word);
        }
    }

    /// Returns how many calls of a living member are under way. A thread that was ended in the
    /// middle of a call counts for ever.
    pub fn calls_under_way(&self, process: &Identity) -> u64 {
        let word = self.gate_of(process);
        word.map_or(0, |word| word.load(Ordering::SeqCst) / CALL)
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
    fn a_closed_gate_holds_back_calls_until_it_opens() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        assert!(gate.enter() && gate.enter());
        scratch.close_gate(&own);
        gate.leave();
        assert_eq!(scratch.calls_under_way(&own), 1);
        gate.leave();
        let (has_tried, is_in) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let entering = scope.spawn(|| {
                assert!(!gate.enter(), "the gate is closed");
                has_tried.store(true, Ordering::SeqCst);
                gate.wait();
                is_in.store(true, Ordering::SeqCst);
            });
            while !has_tried.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            for _ in 0..20 {
                thread::yield_now();
                assert!(!is_in.load(Ordering::SeqCst), "the gate is closed");
            }
            scratch.open_gate(&own);
            entering.join().expect("the thread ends");
        });
        assert_eq!(scratch.calls_under_way(&own), 1);
    }

    #[test]
    fn no_call_is_under_way_once_a_closed_gate_shows_none() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        let (down, over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        if !gate.enter() {
                            gate.wait();
                        }
                        let crashes = down.load(Ordering::SeqCst);
                        gate.leave();
                        assert!(!crashes, "a call is under way");
                    }
                });
            }
            for _ in 0..200 {
                scratch.close_gate(&own);
                while scratch.calls_under_way(&own) > 0 {
                    thread::yield_now();
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
        assert!(slot.gate().enter());
        scratch.close_gate(&Identity::of_self());
        drop(slot);
        let slot = scratch.join();
        assert!(slot.gate().enter());
        assert_eq!(scratch.calls_under_way(&Identity::of_self()), 1);
    }
}

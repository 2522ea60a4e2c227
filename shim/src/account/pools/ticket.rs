//! The *ticket* of a pool: the step that the pool has kept, for a call that takes no lock.
//!
//! A call that gets the ticket begins, and ends, by one atomic operation each. A thread that locks
//! the pool's state takes the ticket back first, also from a call under way, which then ends under
//! the lock. So the state under the lock is the same with and without a ticket. A pool gets a
//! ticket while no call is under way, after `State::is_as_seen` has held: what that function looks
//! at changes only under the lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::steps::within;
use crate::abi::DevicePtr;

/// The bits of the word: `FREE` while the pool has the ticket, `TAKEN` while a call has it. The
/// bits above count the calls since the pool's reserved bytes were read. 0 without a ticket.
const FREE: u64 = 1;
const TAKEN: u64 = 2;
const CALL: u64 = 4;

/// The number of steps that a call finds without the lock.
const STEPS: usize = 64;

/// The ticket of a pool.
pub struct Ticket {
    word: AtomicU64,
    /// Some of the steps in which allocations of the pool have lain, each plus 1. Threads change
    /// them only between [`Self::take_back`] and the next ticket.
    steps: [AtomicU64; STEPS],
}

/// Where [`Ticket::take_back`] found the ticket.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// The pool had no ticket.
    Nothing,
    /// The pool had it. `unseen`: the calls since the pool's reserved bytes were read.
    Back { unseen: u32 },
    /// A call under way had it.
    FromCall { unseen: u32 },
}

impl Ticket {
    pub fn new() -> Self {
        Ticket {
            word: AtomicU64::new(0),
            steps: [const { AtomicU64::new(0) }; STEPS],
        }
    }

    /// Begins a call. Returns false if the ticket is not there.
    #[inline(always)]
    pub fn begin(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & FREE != 0 && self.change(word, word ^ (FREE | TAKEN))
    }

    /// Ends the call that has the ticket, and got `range`, 1 byte to 32 MiB. Returns false if the
    /// call has to end under the lock: it has no ticket, got memory in other steps than known ones,
    /// or is the last of `most` calls.
    #[inline(always)]
    pub fn end(&self, range: &Range<DevicePtr>, most: u32) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let is_known = |step| self.at(step).load(Ordering::Relaxed) == step + 1;
        let steps = within(range);
        word & TAKEN != 0
            && word / CALL < u64::from(most)
            && is_known(steps.start)
            && is_known(steps.end - 1)
            && self.change(word, (word ^ (FREE | TAKEN)) + CALL)
    }

    /// Takes the ticket back. Called after the lock was taken.
    #[inline(always)]
    pub fn take_back(&self) -> Taken {
        if self.word.load(Ordering::Relaxed) == 0 {
            return Taken::Nothing;
        }
        let word = self.word.swap(0, Ordering::AcqRel);
        let unseen = (word / CALL) as u32;
        match word & TAKEN {
            0 => Taken::Back { unseen },
            _ => Taken::FromCall { unseen },
        }
    }

    /// Gives the pool a ticket. Called under the lock, after [`Ticket::take_back`]. `range`: an
    /// allocation in known steps.
    pub fn put(&self, unseen: u32, range: &Range<DevicePtr>) {
        for step in within(range) {
            self.at(step).store(step + 1, Ordering::Relaxed);
        }
        let word = u64::from(unseen) * CALL + FREE;
        self.word.store(word, Ordering::Release);
    }

    /// Forgets all steps. Called under the lock, after [`Ticket::take_back`].
    pub fn forget_steps(&self) {
        for step in &self.steps {
            step.store(0, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn at(&self, step: u64) -> &AtomicU64 {
        &self.steps[step as usize % STEPS]
    }

    #[inline(always)]
    fn change(&self, from: u64, to: u64) -> bool {
        let (changed, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.word
            .compare_exchange(from, to, changed, failed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::account::pools::STEP;

    const BACK: fn(u32) -> Taken = |unseen| Taken::Back { unseen };

    #[test]
    fn a_call_gets_the_ticket_once_and_gives_it_back_in_known_steps() {
        let (ticket, known, other) = (Ticket::new(), STEP..STEP + 5, 5 * STEP..6 * STEP);
        assert!(!ticket.begin() && !ticket.end(&known, 9));
        assert_eq!(ticket.take_back(), Taken::Nothing);
        ticket.put(7, &known);
        assert!(!ticket.end(&known, 9), "no call has it");
        assert!(ticket.begin() && !ticket.begin());
        assert!(!ticket.end(&other, 9), "an unknown step");
        assert!(!ticket.end(&(STEP..2 * STEP + 1), 9), "one unknown step");
        assert!(ticket.end(&known, 9) && ticket.begin());
        assert!(!ticket.end(&known, 8), "too many calls since a reading");
        assert_eq!(ticket.take_back(), Taken::FromCall { unseen: 8 });
        assert!(!ticket.end(&known, 9), "taken from the call");
        ticket.put(0, &other);
        assert!(ticket.begin() && ticket.end(&known, 9), "both are known");
        assert_eq!(ticket.take_back(), BACK(1));
        ticket.forget_steps();
        ticket.put(0, &other);
        assert!(ticket.begin() && !ticket.end(&known, 9) && ticket.end(&other, 9));
    }

    /// Two calls never have the step at the same time, and a call whose ticket was taken back knows
    /// it: the state counts the call then.
    #[test]
    fn no_two_calls_have_the_step_at_once() {
        const CALLS: u32 = 20_000;
        let (ticket, range) = (Ticket::new(), STEP..STEP + 1);
        let (under_way, promised) = (AtomicU32::new(0), Mutex::new(0));
        let lock = || {
            let mut promised = promised.lock().expect("a lock");
            if let Taken::FromCall { .. } = ticket.take_back() {
                *promised += 1;
            }
            promised
        };
        let call = || {
            let begun = ticket.begin();
            if begun {
                assert_eq!(under_way.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                assert_eq!(under_way.fetch_sub(1, Ordering::SeqCst), 1);
            } else {
                *lock() += 1;
            }
            if !(begun && ticket.end(&range, u32::MAX)) {
                let mut promised = lock();
                assert!(*promised > 0, "the call counts");
                *promised -= 1;
                if *promised == 0 {
                    ticket.put(0, &range);
                }
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| (0..CALLS).for_each(|_| call()));
            }
        });
        assert_eq!(*lock(), 0);
    }
}

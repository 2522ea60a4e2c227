//! The part of a process's memory that no call gives a size for: contexts, code, streams, the
//! driver's own buffers.
//!
//! It is what the driver's own figure for this process (NVML) has over what we can name. Calls that
//! may let it grow are paid in advance by an estimate ([`Prepaid`]), and it is measured after them
//! ([`Device::measure`](super::device::Device::measure)). The [`RESERVE`] stays charged in between.
//!
//! The blocks that small arrays share are measured with it and shown as theirs ([`Packed`]).

mod prepaid;

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::book::{Book, RESERVE};
use super::contexts::Contexts;
use super::packed::Packed;
use crate::abi::Context;
pub use prepaid::Prepaid;

#[derive(Default)]
struct State {
    /// Charged for the driver's part.
    held: u64,
    /// The driver's part as last measured.
    used: u64,
    /// Of `used`, what is not charged: contexts, in a group that does not count them.
    uncounted: u64,
    /// Of `held`, promised to calls under way.
    prepaid: u64,
    /// Calls that are being charged for.
    paying: u32,
    /// Of `held`, kept for what contexts will take later.
    reserved: u64,
    /// The driver knows this process: there is a context.
    alive: bool,
    /// Contexts made since the last measurement, with the sizes that were assumed for them.
    assumed: Vec<u64>,
    /// Of `used`, what small arrays lie in.
    packed: Packed,
    /// The number of the latest measurement that was entered.
    measured: u64,
}

impl State {
    /// Of the driver's part, what is charged.
    fn counted(&self) -> u64 {
        self.used - self.uncounted
    }

    /// Bytes that have to be charged.
    fn needed(&self) -> u64 {
        self.counted() + self.prepaid + self.reserved
    }

    /// Of these, what is not.
    fn missing(&self) -> u64 {
        self.needed().saturating_sub(self.held)
    }

    fn idle(&self) -> u64 {
        self.held.saturating_sub(self.needed())
    }

    /// Of the idle bytes, what is to be there.
    fn wanted(&self) -> u64 {
        if self.alive { RESERVE } else { 0 }
    }

    /// Idle bytes that are too many.
    fn excess(&self) -> u64 {
        self.idle().saturating_sub(self.wanted())
    }

    /// Idle bytes that are too few.
    fn short(&self) -> u64 {
        self.wanted().saturating_sub(self.idle())
    }

    /// Promises to a call what is idle, up to `bytes`. Returns the bytes that are promised.
    fn promise(&mut self, bytes: u64) -> u64 {
        let promised = self.idle().min(bytes);
        self.prepaid += promised;
        promised
    }

    /// A call to which `bytes` were promised is over.
    fn release(&mut self, bytes: u64) {
        self.prepaid = self.prepaid.saturating_sub(bytes);
    }

    /// Promises `bytes` that were kept.
    fn offer(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.prepaid += bytes;
    }

    /// The call to which `bytes` were offered is over, and has `taken` so many of them. The others
    /// are kept on.
    fn end_offer(&mut self, bytes: u64, taken: u64) {
        self.release(bytes);
        self.reserved += bytes.saturating_sub(taken);
    }

    /// The driver's part, as `total` tells.
    fn seen(&self, total: Total) -> u64 {
        let seen = total.beyond_named();
        if total.at_least {
            seen.max(self.used)
        } else {
            seen
        }
    }

    /// Of `bytes` by which the driver's part has grown, those that have come out of the reserve.
    fn out_of_reserve(&self, bytes: u64) -> u64 {
        (self.counted() + self.reserved + RESERVE)
            .saturating_sub(self.held)
            .min(bytes)
    }
}

/// The driver's part of a device.
#[derive(Default)]
pub struct DriverPart {
    state: Mutex<State>,
    /// A call under way has ended.
    settled: Condvar,
}

/// The driver's figure for this process, and what of it has a name.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    pub figure: u64,
    pub named: u64,
    /// A thread may be destroying a context: some of what is named may be gone, and the driver's
    /// part larger than this shows.
    pub at_least: bool,
}

impl Total {
    /// The driver's part, bytes.
    pub fn beyond_named(self) -> u64 {
        self.figure.saturating_sub(self.named)
    }
}

/// What a measurement brought to light.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// The driver's part, bytes.
    pub used: u64,
    /// Bytes that had to be charged although the group had no room for them.
    pub overrun: u64,
    /// Another thread destroys a context: what was taken or given back meanwhile may not show.
    pub at_least: bool,
}

impl DriverPart {
    /// Waits, no longer than `until`, for another thread's call that has paid ahead, or is about
    /// to: it may not need all of its estimate, or make this one's needless. False when there is
    /// none to wait for, or no time. The caller has nothing promised to itself: two would wait for
    /// each other.
    pub fn await_others(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        (state.prepaid > 0 || state.paying > 0)
            && !self.settled.wait_until(&mut state, until).timed_out()
    }

    /// The driver's part as last measured, bytes.
    pub fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Of `bytes` by which the driver's part has grown, those that have come out of the reserve.
    pub fn out_of_reserve(&self, bytes: u64) -> u64 {
        self.state.lock().out_of_reserve(bytes)
    }

    /// Bytes that are charged, and idle, become part of the reserve: what of them is too much is
    /// given back after the next measurement.
    pub fn keep(&self, bytes: u64) {
        self.state.lock().held += bytes;
    }

    /// Gives back `bytes` that were kept for what contexts take later.
    pub fn unreserve(&self, book: &Book, bytes: u64) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(bytes);
        book.adjust_headroom((bytes as i64).wrapping_neg());
        self.give_back(book, &mut state);
    }

    /// Changes what is known of small arrays.
    pub fn packed<T>(&self, change: impl FnOnce(&mut Packed) -> T) -> T {
        change(&mut self.state.lock().packed)
    }

    /// A context is gone, and the blocks of its small arrays with it.
    pub fn forget_packed(&self, book: &Book, context: Context) {
        let mut state = self.state.lock();
        state.packed.forget(context);
        book.set_packed(state.packed.bytes());
    }

    /// Without a measurement: a context has gone.
    pub fn forget_assumed(&self, book: &Book, contexts: &Contexts) {
        let mut state = self.state.lock();
        if let Some(bytes) = state.assumed.pop() {
            let used = state.used.saturating_sub(bytes);
            self.enter(book, contexts, &mut state, used);
            self.give_back(book, &mut state);
        }
    }

    /// Without a measurement: the driver's part has changed by so many bytes, for as long as its
    /// context lives.
    pub fn assume(&self, book: &Book, contexts: &Contexts, change: i64) {
        let mut state = self.state.lock();
        if let Some(context) = state.assumed.last_mut() {
            *context = context.saturating_add_signed(change);
        }
        let used = state.used.saturating_add_signed(change);
        self.enter(book, contexts, &mut state, used);
        self.give_back(book, &mut state);
    }

    /// Brings the charge in line with a measurement.
    pub fn conclude(
        &self,
        book: &Book,
        contexts: &Contexts,
        number: u64,
        total: Total,
    ) -> Measured {
        self.conclude_with(book, contexts, &mut self.state.lock(), number, total)
    }

    fn conclude_with(
        &self,
        book: &Book,
        contexts: &Contexts,
        state: &mut State,
        number: u64,
        total: Total,
    ) -> Measured {
        // One that was begun later has been entered: it has seen whatever this one was to see, and
        // more.
        let overrun = if number > state.measured {
            state.measured = number;
            let (before, used) = (state.used, state.seen(total));
            state.alive = total.figure > 0;
            state.assumed.clear();
            state.packed.measured(before, used);
            let overrun = self.enter(book, contexts, state, used);
            book.set_packed(state.packed.bytes());
            overrun
        } else {
            0
        };
        self.give_back(book, state);
        self.refill(book, state);
        Measured {
            used: state.used,
            overrun,
            at_least: total.at_least,
        }
    }

    /// The driver's part is `used` bytes now. Returns the bytes that had to be charged over the
    /// limit.
    fn enter(&self, book: &Book, contexts: &Contexts, state: &mut State, used: u64) -> u64 {
        let (before, counted_before) = (state.used, state.counted());
        state.used = used;
        state.uncounted = contexts.uncounted(book, used);
        let counted = state.counted();
        book.set_driver(before, used);
        // What came into use is no longer idle; what is charged anew is, until here.
        book.adjust_idle(counted_before.wrapping_sub(counted) as i64);
        let missing = state.missing();
        if missing == 0 {
            if used > before {
                book.note_usage();
            }
            return 0;
        }
        let overrun = if book.try_charge(missing) {
            0
        } else {
            book.charge_over(missing);
            missing
        };
        state.held += missing;
        book.add_idle(missing);
        overrun
    }

    /// After a call: gives back what is idle beyond the reserve.
    fn give_back(&self, book: &Book, state: &mut State) {
        let excess = state.excess();
        state.held -= excess;
        book.uncharge_idle(excess);
        self.settled.notify_all();
    }

    fn refill(&self, book: &Book, state: &mut State) {
        let short = state.short();
        if short > 0 && book.try_charge_ahead(short) {
            state.held += short;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::account::rounding::BLOCK;

    #[test]
    fn what_is_charged_and_neither_taken_nor_promised_is_idle() {
        let mut state = State {
            held: 100,
            used: 60,
            uncounted: 20,
            prepaid: 10,
            reserved: 5,
            ..State::default()
        };
        assert_eq!(
            (state.counted(), state.needed(), state.idle()),
            (40, 55, 45)
        );
        assert_eq!(state.promise(40), 40);
        assert_eq!((state.prepaid, state.idle()), (50, 5));
        assert_eq!(state.promise(46), 5);
        assert_eq!((state.prepaid, state.idle()), (55, 0));
        assert_eq!(state.missing(), 0);
        state.used = 61;
        assert_eq!((state.missing(), state.idle()), (1, 0));
    }

    #[test]
    fn a_reserve_is_kept_as_long_as_there_is_a_context() {
        assert_eq!(RESERVE, 2 * BLOCK);
        let mut state = State {
            held: RESERVE + BLOCK,
            ..State::default()
        };
        assert_eq!((state.excess(), state.short()), (RESERVE + BLOCK, 0));
        state.alive = true;
        assert_eq!((state.excess(), state.short()), (BLOCK, 0));
        state.prepaid = 2 * BLOCK;
        assert_eq!((state.excess(), state.short()), (0, BLOCK));
        state.used = 2 * BLOCK;
        assert_eq!((state.excess(), state.short()), (0, RESERVE));
    }

    #[test]
    fn what_is_seen_while_a_context_goes_lowers_nothing() {
        let state = State {
            used: 50,
            ..State::default()
        };
        let seen = |figure, at_least| {
            state.seen(Total {
                figure,
                named: 100,
                at_least,
            })
        };
        assert_eq!((seen(151, true), seen(149, true)), (51, 50));
        assert_eq!((seen(151, false), seen(149, false)), (51, 49));
    }

    #[test]
    fn what_is_kept_and_not_taken_is_kept_on() {
        let mut state = State {
            reserved: 30,
            prepaid: 5,
            ..State::default()
        };
        state.offer(20);
        assert_eq!((state.reserved, state.prepaid), (10, 25));
        state.end_offer(20, 15);
        assert_eq!((state.reserved, state.prepaid), (15, 5));
    }

    #[test]
    fn growth_comes_out_of_the_reserve_as_far_as_that_lacks_it() {
        let mut state = State {
            held: 100 + RESERVE,
            used: 80,
            uncounted: 10,
            reserved: 30,
            ..State::default()
        };
        assert_eq!(state.out_of_reserve(BLOCK), 0);
        state.used += 7;
        assert_eq!(state.out_of_reserve(BLOCK), 7);
        state.used += BLOCK;
        assert_eq!(state.out_of_reserve(BLOCK), BLOCK, "the rest is others'");
    }

    #[test]
    fn a_call_waits_for_others_that_are_under_way_and_for_nobody_else() {
        let part = DriverPart::default();
        let hour = Instant::now() + Duration::from_secs(3600);
        assert!(!part.await_others(hour), "there are none");
        part.state.lock().prepaid = BLOCK;
        assert!(!part.await_others(Instant::now()), "no time");
        thread::scope(|threads| {
            let waits = threads.spawn(|| part.await_others(hour));
            while !waits.is_finished() {
                part.settled.notify_all();
                thread::yield_now();
            }
            assert!(waits.join().expect("an answer"));
        });
    }
}

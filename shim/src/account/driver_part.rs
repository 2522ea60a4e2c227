//! The driver's own memory in this process: contexts, code, streams and the driver's own buffers.
//!
//! Its size is NVML's figure for this process minus the *named* bytes, whose size the program gave.
//! A call that may increase the size charges an estimate in advance ([`Prepaid`]). Afterwards the
//! account measures the size.
//!
//! Shared blocks of small arrays are measured here, and published as arrays ([`Packed`]).

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
    /// Bytes that are charged for the driver's own memory.
    held: u64,
    /// The size of the driver's own memory at the last measurement, in bytes.
    used: u64,
    /// Bytes of `used` that are not charged, because the group does not count the memory of
    /// contexts.
    uncounted: u64,
    /// Bytes of `held` that are promised to driver calls under way.
    prepaid: u64,
    /// The number of calls for which threads are charging bytes at the moment.
    paying: u32,
    /// Bytes of `held` that are kept for memory which contexts will take later.
    reserved: u64,
    /// Bytes of `held` that stay promised to ended calls until the next measurement.
    deferred: u64,
    /// Whether the process has a context. NVML lists only processes that have one.
    alive: bool,
    /// The assumed sizes of the contexts that were made since the last measurement.
    assumed: Vec<u64>,
    /// The figures of the small arrays. Their blocks are part of `used`.
    packed: Packed,
    /// The number of the latest measurement that was recorded.
    measured: u64,
}

impl State {
    /// Returns the bytes of the driver's own memory that the group counts.
    fn counted(&self) -> u64 {
        self.used - self.uncounted
    }

    /// Returns the bytes to charge for the driver's own memory, including the bytes promised to
    /// calls or kept for contexts.
    fn needed(&self) -> u64 {
        self.counted() + self.prepaid + self.reserved + self.deferred
    }

    /// Returns the bytes of [`State::needed`] that are not charged yet.
    fn missing(&self) -> u64 {
        self.needed().saturating_sub(self.held)
    }

    fn idle(&self) -> u64 {
        self.held.saturating_sub(self.needed())
    }

    /// Returns the bytes that stay charged beyond the driver's own memory: [`RESERVE`] while the
    /// process has a context.
    fn wanted(&self) -> u64 {
        if self.alive { RESERVE } else { 0 }
    }

    /// Returns the charged but unused bytes that exceed the wanted reserve ([`State::wanted`]).
    fn excess(&self) -> u64 {
        self.idle().saturating_sub(self.wanted())
    }

    /// Returns how many bytes of [`RESERVE`] are missing: bytes that are in use or not charged.
    fn short(&self) -> u64 {
        self.wanted().saturating_sub(self.idle())
    }

    /// Promises up to `bytes` of the charged but unused bytes to a call. Returns the number of
    /// bytes promised.
    fn promise(&mut self, bytes: u64) -> u64 {
        let promised = self.idle().min(bytes);
        self.prepaid += promised;
        promised
    }

    /// Ends the promise of `bytes` to a call.
    fn release(&mut self, bytes: u64) {
        self.prepaid = self.prepaid.saturating_sub(bytes);
    }

    /// Promises `bytes` to a call. They are taken from the bytes that are kept for contexts.
    fn offer(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.prepaid += bytes;
    }

    /// Ends the promise of `bytes` that were kept for contexts. Bytes beyond `taken` are kept for
    /// contexts again.
    fn end_offer(&mut self, bytes: u64, taken: u64) {
        self.release(bytes);
        self.reserved += bytes.saturating_sub(taken);
    }

    /// Returns the size of the driver's own memory according to the measurement `total`.
    fn seen(&self, total: Total) -> u64 {
        let seen = total.beyond_named();
        if total.at_least {
            seen.max(self.used)
        } else {
            seen
        }
    }

    /// Returns how many of the `bytes` by which the driver's own memory has grown were charged in
    /// advance as [`RESERVE`].
    fn out_of_reserve(&self, bytes: u64) -> u64 {
        (self.counted() + self.reserved + RESERVE)
            .saturating_sub(self.held)
            .min(bytes)
    }
}

/// The driver's own memory of this process on one device.
#[derive(Default)]
pub struct DriverPart {
    state: Mutex<State>,
    /// Notified when a call with bytes charged in advance ends, or when a thread stops charging.
    settled: Condvar,
}

/// NVML's figure for this process, and the named bytes: the part of the figure whose size the
/// program gave in its calls.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    pub figure: u64,
    pub named: u64,
    /// Whether the driver's own memory may exceed `figure - named`, because a thread is destroying
    /// a context.
    pub at_least: bool,
}

impl Total {
    /// Returns the size of the driver's own memory, in bytes.
    pub fn beyond_named(self) -> u64 {
        self.figure.saturating_sub(self.named)
    }
}

/// The result of measuring the driver's own memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// The size of the driver's own memory, in bytes.
    pub used: u64,
    /// Bytes that were charged above the limit, because the group was full.
    pub overrun: u64,
    /// Whether another thread was destroying a context. If so, `used` may be too small.
    pub at_least: bool,
}

impl DriverPart {
    /// Waits, until `until` at most, for the end of another thread's call that charges in advance.
    /// Returns false if no such call runs or ends in time.
    ///
    /// The caller must hold no promised bytes: two such callers would wait for each other.
    pub fn await_others(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        (state.prepaid > 0 || state.paying > 0)
            && !self.settled.wait_until(&mut state, until).timed_out()
    }

    /// Returns the size of the driver's own memory at the last measurement, in bytes.
    pub fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Returns the number of the latest measurement that was recorded.
    pub fn measured(&self) -> u64 {
        self.state.lock().measured
    }

    /// Returns whether a call was not measured since the last measurement.
    pub fn has_deferred(&self) -> bool {
        self.state.lock().deferred > 0
    }

    /// Returns how many of the `bytes` by which the driver's own memory has grown were charged in
    /// advance as [`RESERVE`].
    pub fn out_of_reserve(&self, bytes: u64) -> u64 {
        self.state.lock().out_of_reserve(bytes)
    }

    /// Adds charged, unused `bytes` to the reserve for the driver's own memory. The next
    /// measurement uncharges bytes beyond [`RESERVE`].
    pub fn keep(&self, bytes: u64) {
        self.state.lock().held += bytes;
    }

    /// Uncharges `bytes` that were kept for memory that contexts take later.
    pub fn unreserve(&self, book: &Book, bytes: u64) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(bytes);
        book.adjust_headroom((bytes as i64).wrapping_neg());
        self.give_back(book, &mut state);
    }

    /// Calls `change` with the figures of small arrays.
    pub fn packed<T>(&self, change: impl FnOnce(&mut Packed) -> T) -> T {
        change(&mut self.state.lock().packed)
    }

    /// Removes the figures of the small arrays of a destroyed context.
    pub fn forget_packed(&self, book: &Book, context: Context) {
        let mut state = self.state.lock();
        state.packed.forget(context);
        book.set_packed(state.packed.bytes());
    }

    /// Removes the assumed size of a destroyed context. Used where NVML gives no figure.
    pub fn forget_assumed(&self, book: &Book, contexts: &Contexts) {
        let mut state = self.state.lock();
        if let Some(bytes) = state.assumed.pop() {
            let used = state.used.saturating_sub(bytes);
            self.enter(book, contexts, &mut state, used);
            self.give_back(book, &mut state);
        }
    }

    /// Changes the recorded size of the driver's own memory, where NVML gives no figure. The change
    /// belongs to the newest context.
    pub fn assume(&self, book: &Book, contexts: &Contexts, change: i64) {
        let mut state = self.state.lock();
        if let Some(context) = state.assumed.last_mut() {
            *context = context.saturating_add_signed(change);
        }
        let used = state.used.saturating_add_signed(change);
        self.enter(book, contexts, &mut state, used);
        self.give_back(book, &mut state);
    }

    /// Corrects the charge for the driver's own memory. `number`: the number of the measurement.
    /// `total`: its result.
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
        // An older measurement does not replace a newer one. The newer measurement has seen the
        // same changes.
        let overrun = if number > state.measured {
            state.measured = number;
            let (before, used) = (state.used, state.seen(total));
            state.alive = total.figure > 0;
            state.assumed.clear();
            state.deferred = 0;
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

    /// Records that the driver's own memory is `used` bytes. Returns the bytes that had to be
    /// charged above the limit.
    fn enter(&self, book: &Book, contexts: &Contexts, state: &mut State, used: u64) -> u64 {
        let (before, counted_before) = (state.used, state.counted());
        state.used = used;
        state.uncounted = contexts.uncounted(book, used);
        let counted = state.counted();
        book.set_driver(before, used);
        // All growth is subtracted from the idle bytes here. The uncharged part of the growth is
        // added back below.
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

    /// Uncharges the unused bytes that exceed [`RESERVE`]. Call after the driver's function has
    /// returned.
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
    fn charged_bytes_that_are_neither_taken_nor_promised_are_idle() {
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
    fn a_figure_seen_during_a_teardown_never_lowers_the_part() {
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
    fn offered_bytes_that_are_not_taken_are_kept() {
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
    fn growth_comes_out_of_the_reserve_as_far_as_the_reserve_has_shrunk() {
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
        assert_eq!(
            state.out_of_reserve(BLOCK),
            BLOCK,
            "the result is no larger than the growth"
        );
    }

    #[test]
    fn a_call_waits_only_for_other_calls_under_way() {
        let part = DriverPart::default();
        let hour = Instant::now() + Duration::from_secs(3600);
        assert!(!part.await_others(hour), "no call is under way");
        part.state.lock().prepaid = BLOCK;
        assert!(!part.await_others(Instant::now()), "the time is over");
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

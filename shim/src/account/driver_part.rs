//! The driver's own memory in this process: contexts, code, streams and the driver's own buffers.
//!
//! Its size is NVML's figure for this process minus the *named* bytes, whose size the program gave.
//! A call that may increase the size charges an estimate in advance ([`Prepaid`]). Afterwards the
//! account measures the size.

mod prepaid;

use std::time::Instant;

use super::book::{Book, RESERVE};
use super::contexts::Contexts;
use super::reserve::{Changes, Reserve, State};
pub use prepaid::Prepaid;

/// The measured and the estimated sizes of the driver's own memory on one GPU. The reserve of this
/// part keeps bytes for memory that contexts take later.
#[derive(Default)]
pub(super) struct Part {
    /// The size of the driver's own memory at the last measurement, in bytes. The reserve counts
    /// less as used where the group does not count the memory of contexts.
    size: u64,
    /// Bytes that stay promised to ended calls until the next measurement.
    deferred: u64,
    /// The assumed sizes of the contexts that were made since the last measurement.
    assumed: Vec<u64>,
    /// The number of the latest measurement that was recorded.
    measured: u64,
}

impl Part {
    /// Returns the size of the driver's own memory according to the measurement `total`.
    fn seen(&self, total: Total) -> u64 {
        let seen = total.beyond_named();
        if total.at_least {
            seen.max(self.size)
        } else {
            seen
        }
    }
}

impl State<Part> {
    /// Returns how many of the `bytes` by which the driver's own memory has grown were charged in
    /// advance as [`RESERVE`].
    fn out_of_reserve(&self, bytes: u64) -> u64 {
        (self.used + self.kept + RESERVE)
            .saturating_sub(self.held)
            .min(bytes)
    }
}

/// The driver's own memory of this process on one device.
#[derive(Default)]
pub struct DriverPart(Reserve<Part>);

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
        self.0.await_others(until)
    }

    /// Returns the size of the driver's own memory at the last measurement, in bytes.
    pub fn used(&self) -> u64 {
        self.0.read().own.size
    }

    /// Returns the number of the latest measurement that was recorded.
    pub fn measured(&self) -> u64 {
        self.0.read().own.measured
    }

    /// Returns whether a call was not measured since the last measurement.
    pub fn has_deferred(&self) -> bool {
        self.0.read().own.deferred > 0
    }

    /// Returns how many of the `bytes` by which the driver's own memory has grown were charged in
    /// advance as [`RESERVE`].
    pub fn out_of_reserve(&self, bytes: u64) -> u64 {
        self.0.read().out_of_reserve(bytes)
    }

    /// Adds charged, unused `bytes` to the reserve for the driver's own memory. The next
    /// measurement uncharges bytes beyond [`RESERVE`].
    pub fn keep(&self, book: &Book, bytes: u64) {
        self.0.change(book).held += bytes;
    }

    /// Uncharges `bytes` that were kept for memory that contexts take later.
    pub fn unreserve(&self, book: &Book, bytes: u64) {
        let mut state = self.0.change(book);
        state.kept = state.kept.saturating_sub(bytes);
        state.give_back();
    }

    /// Removes the assumed size of a destroyed context. Used where NVML gives no figure.
    pub fn forget_assumed(&self, book: &Book, contexts: &Contexts) {
        let mut state = self.0.change(book);
        if let Some(bytes) = state.own.assumed.pop() {
            let used = state.own.size.saturating_sub(bytes);
            enter(contexts, &mut state, used);
            state.give_back();
        }
    }

    /// Changes the recorded size of the driver's own memory, where NVML gives no figure. The change
    /// belongs to the newest context.
    pub fn assume(&self, book: &Book, contexts: &Contexts, change: i64) {
        let mut state = self.0.change(book);
        if let Some(context) = state.own.assumed.last_mut() {
            *context = context.saturating_add_signed(change);
        }
        let used = state.own.size.saturating_add_signed(change);
        enter(contexts, &mut state, used);
        state.give_back();
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
        conclude(contexts, self.0.change(book), number, total)
    }
}

fn conclude(
    contexts: &Contexts,
    mut state: Changes<'_, Part>,
    number: u64,
    total: Total,
) -> Measured {
    // An older measurement does not replace a newer one. The newer measurement has seen the same
    // changes.
    let overrun = if number > state.own.measured {
        let deferred = std::mem::take(&mut state.own.deferred);
        state.release(deferred);
        state.headroom = if total.figure > 0 { RESERVE } else { 0 };
        let own = &mut state.own;
        own.measured = number;
        let used = own.seen(total);
        own.assumed.clear();
        enter(contexts, &mut state, used)
    } else {
        0
    };
    state.give_back();
    state.refill();
    Measured {
        used: state.own.size,
        overrun,
        at_least: total.at_least,
    }
}

/// Records that the driver's own memory is `used` bytes. Returns the bytes that had to be charged
/// above the limit.
fn enter(contexts: &Contexts, state: &mut Changes<'_, Part>, used: u64) -> u64 {
    let book = state.book;
    book.set_driver(state.own.size, used);
    state.own.size = used;
    state.used = used - contexts.uncounted(book, used);
    let missing = state.needed().saturating_sub(state.held);
    state.cover(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::rounding::BLOCK;

    #[test]
    fn a_figure_seen_during_a_teardown_never_lowers_the_part() {
        let size = Part {
            size: 50,
            ..Part::default()
        };
        let seen = |figure, at_least| {
            size.seen(Total {
                figure,
                named: 100,
                at_least,
            })
        };
        assert_eq!((seen(151, true), seen(149, true)), (51, 50));
        assert_eq!((seen(151, false), seen(149, false)), (51, 49));
    }

    #[test]
    fn growth_comes_out_of_the_reserve_as_far_as_the_reserve_has_shrunk() {
        let mut state = State::<Part> {
            held: 100 + RESERVE,
            used: 70,
            ..State::default()
        };
        state.kept = 30;
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
}

//! The 2 MiB blocks that small arrays share, recorded for each context.
//!
//! The driver does not tell in which block a small array lies. So these blocks are measured as part
//! of the driver's own memory. A change of this size counts for small arrays while a call makes or
//! destroys an array. The total stays within the bounds of the existing arrays.

use super::rounding::{BLOCK, round_up};
use crate::abi::Context;

/// The figures of the small arrays in one context.
#[derive(Default)]
struct ContextArrays {
    context: Context,
    /// The number of calls under way that make or destroy small arrays in the context.
    under_way: u32,
    /// The least and the most bytes that the small arrays take, including the arrays of calls under
    /// way.
    least: u64,
    most: u64,
    /// The total bytes of the blocks in which the small arrays lie.
    bytes: u64,
    /// Whether several calls, of any context, were under way at a measurement since the context had
    /// no small arrays. What one of them has changed may have been counted for another, so `bytes`
    /// may be wrong.
    doubt: bool,
}

impl ContextArrays {
    fn least_blocks(&self) -> u64 {
        round_up(self.least, BLOCK).min(self.most)
    }

    fn bounded(&self, bytes: u64) -> u64 {
        bytes.clamp(self.least_blocks(), self.most)
    }
}

/// The figures of the small arrays on one device.
#[derive(Default)]
pub struct Packed(Vec<ContextArrays>);

impl Packed {
    fn of(&mut self, context: Context) -> &mut ContextArrays {
        let found = self.0.iter().position(|arrays| arrays.context == context);
        let at = found.unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(ContextArrays {
                context,
                ..ContextArrays::default()
            });
        }
        &mut self.0[at]
    }

    /// Begins a call that makes or destroys a small array. `most`: the most bytes of a new array.
    /// Returns the bytes so far.
    pub fn begin(&mut self, context: Context, most: u64) -> u64 {
        let arrays = self.of(context);
        arrays.under_way += 1;
        arrays.most += most;
        arrays.bytes
    }

    /// Records that the call has made a small array that needs at least `least` bytes.
    pub fn made(&mut self, context: Context, least: u64) {
        self.of(context).least += least;
    }

    /// Removes the figures of a small array that was destroyed or not made. Returns true if a block
    /// may have been freed.
    ///
    /// An array of unknown size (`least` is 0) may always have freed one: [`Packed::bytes`] can be
    /// too small after calls that overlapped.
    pub fn gone(&mut self, context: Context, least: u64, most: u64) -> bool {
        let arrays = self.of(context);
        arrays.least = arrays.least.saturating_sub(least);
        arrays.most = arrays.most.saturating_sub(most);
        least == 0 || arrays.doubt || arrays.bytes > arrays.least_blocks()
    }

    /// Ends a call. Returns the bytes of the context's array blocks after the call.
    pub fn end(&mut self, context: Context) -> u64 {
        let arrays = self.of(context);
        arrays.under_way = arrays.under_way.saturating_sub(1);
        let bytes = arrays.bytes;
        self.0
            .retain(|arrays| arrays.under_way > 0 || arrays.most > 0);
        bytes
    }

    /// Counts a change of the driver's own memory for the contexts in which small arrays are being
    /// made or destroyed.
    pub fn measured(&mut self, before: u64, after: u64) {
        let mut change = after.wrapping_sub(before) as i64;
        let under_way: u32 = self.0.iter().map(|arrays| arrays.under_way).sum();
        for arrays in self.0.iter_mut().filter(|arrays| arrays.under_way > 0) {
            let bytes = arrays.bounded(arrays.bytes.saturating_add_signed(change));
            change -= bytes.wrapping_sub(arrays.bytes) as i64;
            arrays.bytes = bytes;
            arrays.doubt |= under_way > 1;
        }
        let mut left = after;
        for arrays in &mut self.0 {
            arrays.bytes = arrays.bounded(arrays.bytes).min(left);
            left -= arrays.bytes;
        }
    }

    /// Removes the figures of a destroyed context.
    pub fn forget(&mut self, context: Context) {
        self.0.retain(|arrays| arrays.context != context);
    }

    /// Returns the total bytes of the blocks in which small arrays lie, over all contexts.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|arrays| arrays.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use gpulimit_support::Random;

    use super::*;

    const GRAIN: u64 = 64 << 10;

    /// Makes a small array and measures. Returns the growth of the array blocks in bytes.
    fn make(packed: &mut Packed, context: Context, from: u64, to: u64) -> u64 {
        let before = packed.begin(context, BLOCK);
        packed.made(context, GRAIN);
        packed.measured(from, to);
        packed.end(context) - before
    }

    #[test]
    fn only_growth_during_a_call_belongs_to_small_arrays() {
        let mut packed = Packed::default();
        assert_eq!(make(&mut packed, 7, 100 * BLOCK, 101 * BLOCK), BLOCK);
        assert_eq!(make(&mut packed, 7, 101 * BLOCK, 101 * BLOCK), 0);
        packed.measured(101 * BLOCK, 110 * BLOCK);
        assert_eq!(packed.bytes(), BLOCK);
        // Two small arrays take at most two blocks.
        packed.begin(7, 0);
        packed.measured(110 * BLOCK, 120 * BLOCK);
        packed.end(7);
        assert_eq!(packed.bytes(), 2 * BLOCK);
    }

    #[test]
    fn a_block_goes_when_the_rest_fits_into_fewer() {
        let mut packed = Packed::default();
        make(&mut packed, 7, 0, BLOCK);
        make(&mut packed, 7, BLOCK, BLOCK);
        packed.begin(7, 0);
        assert!(!packed.gone(7, GRAIN, BLOCK), "the block holds an array");
        assert_eq!(packed.end(7), BLOCK);
        packed.begin(7, 0);
        assert!(packed.gone(7, GRAIN, BLOCK));
        packed.measured(BLOCK, 0);
        packed.end(7);
        assert_eq!(packed.bytes(), 0);
    }

    #[test]
    fn the_blocks_of_a_context_go_with_it() {
        let mut packed = Packed::default();
        make(&mut packed, 7, 0, BLOCK);
        make(&mut packed, 8, BLOCK, 2 * BLOCK);
        packed.forget(7);
        assert_eq!(packed.bytes(), BLOCK);
        assert_eq!((packed.begin(7, 0), packed.begin(8, 0)), (0, BLOCK));
    }

    #[test]
    fn growth_during_calls_of_two_contexts_is_counted_once() {
        let mut packed = Packed::default();
        packed.begin(7, BLOCK);
        packed.begin(8, BLOCK);
        packed.measured(10 * BLOCK, 11 * BLOCK);
        assert_eq!(packed.bytes(), BLOCK);
        packed.measured(11 * BLOCK, 13 * BLOCK);
        assert_eq!(packed.bytes(), 2 * BLOCK, "2 arrays take at most 2 blocks");
        packed.end(7);
        packed.end(8);
        packed.measured(13 * BLOCK, BLOCK);
        assert_eq!(packed.bytes(), BLOCK, "the driver has only one block left");
    }

    #[test]
    fn where_calls_overlap_a_block_may_have_gone_with_any_of_them() {
        let mut packed = Packed::default();
        packed.begin(7, 0);
        packed.begin(7, 0);
        packed.end(7);
        // The first call is still under way while the second makes its array.
        packed.begin(7, BLOCK);
        packed.made(7, 3 * GRAIN);
        packed.measured(0, BLOCK);
        packed.end(7);
        assert!(packed.gone(7, GRAIN, 0));
        packed.measured(BLOCK, BLOCK);
        assert!(packed.gone(7, GRAIN, 0), "the calls may have been mixed up");
    }

    #[test]
    fn a_call_that_failed_leaves_no_entry() {
        let mut packed = Packed::default();
        packed.begin(7, BLOCK);
        packed.gone(7, 0, BLOCK);
        assert_eq!(packed.end(7), 0);
        assert_eq!(packed.bytes(), 0);
        assert!(packed.0.is_empty());
    }

    /// A thread that makes or destroys an array with a block of its own. Between two steps, other
    /// threads may run.
    #[derive(Default)]
    struct Thread {
        context: Context,
        to_make: u32,
        arrays: u32,
        makes: bool,
        step: u32,
        measures: bool,
        number: u64,
        figure: u64,
    }

    /// The driver's memory, and what the account knows of it.
    #[derive(Default)]
    struct Account {
        packed: Packed,
        held: u64,
        used: u64,
        begun: u64,
        recorded: u64,
    }

    impl Thread {
        fn is_done(&self) -> bool {
            self.step == 0 && self.to_make == 0 && self.arrays == 0
        }

        fn run(&mut self, account: &mut Account, least: u64, prefers_to_make: bool) {
            let context = self.context;
            let packed = &mut account.packed;
            match self.step {
                0 => {
                    self.makes = self.to_make > 0 && (self.arrays == 0 || prefers_to_make);
                    packed.begin(context, if self.makes { BLOCK } else { 0 });
                }
                1 if self.makes => account.held += BLOCK,
                1 => account.held -= BLOCK,
                2 if self.makes => {
                    packed.made(context, least);
                    self.measures = true;
                }
                2 => {
                    self.measures =
                        packed.gone(context, least, BLOCK) || account.begun > account.recorded;
                }
                3 => {
                    account.begun += 1;
                    self.number = account.begun;
                }
                4 => self.figure = account.held,
                5 if self.measures && self.number > account.recorded => {
                    packed.measured(account.used, self.figure);
                    (account.used, account.recorded) = (self.figure, self.number);
                }
                5 => {}
                _ => {
                    packed.end(context);
                    if self.makes {
                        (self.to_make, self.arrays) = (self.to_make - 1, self.arrays + 1);
                    } else {
                        self.arrays -= 1;
                    }
                    self.step = 0;
                    return;
                }
            }
            self.step += 1;
        }
    }

    #[test]
    fn no_array_of_threads_leaves_a_block_behind() {
        for (seed, least) in (1..=10_000).flat_map(|seed| [(seed, 0), (seed, GRAIN)]) {
            let mut random = Random::with_seed(seed);
            let mut account = Account::default();
            // All in one context, or two in each of two contexts.
            let contexts = 1 + (seed % 2) as Context;
            let mut threads = [0, 1, 2, 3].map(|thread| Thread {
                context: 7 + thread % contexts,
                to_make: 1 + seed as u32 / 2 % 6,
                ..Thread::default()
            });
            let mut runs = 0;
            while !threads.iter().all(Thread::is_done) {
                // A thread mostly goes on, so that whole calls fall between two steps of others.
                if random.usize(..4) == 0 {
                    runs = random.usize(..4);
                }
                let thread = &mut threads[runs];
                if !thread.is_done() {
                    thread.run(&mut account, least, random.bool());
                }
                if threads.iter().all(|thread| thread.step == 0) {
                    assert_eq!(account.used, account.held, "{seed}, {least}");
                }
            }
            assert_eq!((account.held, account.used), (0, 0), "{seed}, {least}");
        }
    }
}

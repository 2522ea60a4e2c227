//! What a pool has promised to a call, as a guard: the promise ends with the call, also on a panic.

use std::ops::Range;

use super::Pool;
use crate::abi::DevicePtr;
use crate::account::book::Book;

/// Of the bytes by which a call may let its pool grow, those that are paid.
#[must_use = "it ends at once"]
pub struct Promise<'a> {
    pool: &'a Pool,
    paid: u64,
    growth: u64,
}

impl<'a> Promise<'a> {
    /// All of the `growth` has been paid.
    #[inline(always)]
    pub fn new(pool: &'a Pool, growth: u64) -> Self {
        Promise::partly(pool, growth, growth)
    }

    /// Of the `growth`, `paid` bytes have been paid.
    #[inline(always)]
    pub fn partly(pool: &'a Pool, paid: u64, growth: u64) -> Self {
        Promise { pool, paid, growth }
    }

    /// The call is over: see [`Pool::settle`].
    #[inline(always)]
    pub fn settle(self, book: &Book, range: Option<Range<DevicePtr>>) -> bool {
        let (pool, growth) = (self.pool, self.growth);
        self.stays();
        pool.settle(book, growth, range)
    }

    /// It goes on without this guard.
    #[inline(always)]
    pub fn stays(self) {
        std::mem::forget(self);
    }
}

/// The values are handed on one by one, so that a guard need not lie in memory.
impl Drop for Promise<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.pool, self.paid, self.growth);
    }
}

/// The call was not made; or it has panicked, and what is paid stays charged until the pool is
/// looked at (`Process::recover`).
#[cold]
#[inline(never)]
fn abandon(pool: &Pool, paid: u64, growth: u64) {
    pool.state.lock().end(paid, growth);
    pool.settled.notify_all();
}

/// A pool has grown by more than its headroom, until that has been seen to.
pub struct Growth<'a>(pub &'a Pool);

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.growing = state.growing.saturating_sub(1);
        self.0.settled.notify_all();
    }
}

//! The bytes that a pool has promised to a call, as a guard. Dropping the guard ends the promise.

use std::ops::Range;

use super::Pool;
use crate::abi::DevicePtr;
use crate::account::book::Book;

/// Bytes that are charged for a call, because the call may make its pool grow.
#[must_use = "dropping the guard ends the promise of bytes to the call"]
pub struct Promise<'a> {
    pool: &'a Pool,
    paid: u64,
    growth: u64,
}

impl<'a> Promise<'a> {
    /// Makes a guard for a call. All of `growth`, the largest possible growth of the pool, has been
    /// charged.
    #[inline(always)]
    pub fn new(pool: &'a Pool, growth: u64) -> Self {
        Promise::partly(pool, growth, growth)
    }

    /// Makes a guard for a call. `paid` bytes of `growth`, the largest possible growth of the pool,
    /// have been charged.
    #[inline(always)]
    pub fn partly(pool: &'a Pool, paid: u64, growth: u64) -> Self {
        Promise { pool, paid, growth }
    }

    /// Ends the call as [`Pool::settle`] describes.
    #[inline(always)]
    pub fn settle(self, book: &Book, range: Option<Range<DevicePtr>>) -> bool {
        let (pool, growth) = (self.pool, self.growth);
        self.stays();
        pool.settle(book, growth, range)
    }

    /// Forgets the guard without ending the promise.
    #[inline(always)]
    pub fn stays(self) {
        std::mem::forget(self);
    }
}

/// `drop` passes the fields one by one, so that the compiler can keep a guard in registers.
impl Drop for Promise<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.pool, self.paid, self.growth);
    }
}

/// Ends the promise to a call that was not made or has panicked. The bytes stay charged until the
/// next reading.
#[cold]
#[inline(never)]
fn abandon(pool: &Pool, paid: u64, growth: u64) {
    pool.state.lock().end(paid, growth);
    pool.settled.notify_all();
}

/// A guard that exists after a pool has grown into its headroom, until the growth is charged or
/// undone.
pub struct Growth<'a>(pub &'a Pool);

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.growing = state.growing.saturating_sub(1);
        self.0.settled.notify_all();
    }
}

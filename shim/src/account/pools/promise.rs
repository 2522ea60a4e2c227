//! The bytes that a pool has promised to a call, as a guard: dropping the guard ends the promise,
//! also on a panic.

use std::ops::Range;

use super::Pool;
use crate::abi::DevicePtr;
use crate::account::book::Book;

/// The charged part of the growth that a call may cause in its pool.
#[must_use = "dropping the guard ends the promise of bytes to the call"]
pub struct Promise<'a> {
    pool: &'a Pool,
    paid: u64,
    growth: u64,
}

impl<'a> Promise<'a> {
    /// Makes a guard for a call whose whole possible `growth` of the pool has been charged.
    #[inline(always)]
    pub fn new(pool: &'a Pool, growth: u64) -> Self {
        Promise::partly(pool, growth, growth)
    }

    /// Makes a guard for a call for which `paid` bytes of the possible `growth` of the pool have
    /// been charged.
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

    /// Drops the guard without ending the promise.
    #[inline(always)]
    pub fn stays(self) {
        std::mem::forget(self);
    }
}

/// `drop` passes the fields one by one to `abandon`, so that the compiler can keep a guard in
/// registers.
impl Drop for Promise<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.pool, self.paid, self.growth);
    }
}

/// Ends the promise to a call. The call was not made, or the thread has panicked during the call.
/// The charged bytes stay charged until the pool's reserved bytes are read again
/// (`Process::recover`).
#[cold]
#[inline(never)]
fn abandon(pool: &Pool, paid: u64, growth: u64) {
    pool.state.lock().end(paid, growth);
    pool.settled.notify_all();
}

/// A pool has grown and has used the bytes charged in advance. This guard stands for the growth,
/// and lives until the growth is charged or undone.
pub struct Growth<'a>(pub &'a Pool);

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.growing = state.growing.saturating_sub(1);
        self.0.settled.notify_all();
    }
}

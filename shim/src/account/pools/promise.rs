//! The bytes that a pool has promised to a call, as a guard: the promise ends with the call, also
//! on a panic.

use std::ops::Range;

use super::Pool;
use crate::abi::DevicePtr;
use crate::account::book::Book;

/// The part of a call's possible growth of its pool that is paid.
#[must_use = "the promise ends when this is dropped"]
pub struct Promise<'a> {
    pool: &'a Pool,
    paid: u64,
    growth: u64,
}

impl<'a> Promise<'a> {
    /// Guards a call whose whole `growth` has been paid.
    #[inline(always)]
    pub fn new(pool: &'a Pool, growth: u64) -> Self {
        Promise::partly(pool, growth, growth)
    }

    /// Guards a call for which `paid` bytes of the `growth` have been paid.
    #[inline(always)]
    pub fn partly(pool: &'a Pool, paid: u64, growth: u64) -> Self {
        Promise { pool, paid, growth }
    }

    /// Ends the call: see [`Pool::settle`].
    #[inline(always)]
    pub fn settle(self, book: &Book, range: Option<Range<DevicePtr>>) -> bool {
        let (pool, growth) = (self.pool, self.growth);
        self.stays();
        pool.settle(book, growth, range)
    }

    /// Keeps the promise when this guard is gone.
    #[inline(always)]
    pub fn stays(self) {
        std::mem::forget(self);
    }
}

/// The fields are passed on one by one, so that the compiler can keep a guard in registers.
impl Drop for Promise<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.pool, self.paid, self.growth);
    }
}

/// Ends the promise of a call that was not made, or that has panicked: then what is paid stays
/// charged until the pool is looked at (`Process::recover`).
#[cold]
#[inline(never)]
fn abandon(pool: &Pool, paid: u64, growth: u64) {
    pool.state.lock().end(paid, growth);
    pool.settled.notify_all();
}

/// Growth of a pool beyond its headroom, until it is charged or undone.
pub struct Growth<'a>(pub &'a Pool);

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.growing = state.growing.saturating_sub(1);
        self.0.settled.notify_all();
    }
}

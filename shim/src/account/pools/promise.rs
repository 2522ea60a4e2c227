//! The bytes that a pool has promised to a call, as a guard. Dropping the guard ends the promise.

use std::ops::Range;

use super::Pool;
use crate::abi::DevicePtr;
use crate::account::book::Book;

/// Bytes that are charged for a call, because the call may make its pool grow.
#[must_use = "dropping the guard ends the promise of bytes to the call"]
pub struct Promise<'a> {
    pool: &'a Pool,
    book: &'a Book,
    paid: u64,
    growth: u64,
}

impl<'a> Promise<'a> {
    /// Makes a guard for a call. All of `growth`, the largest possible growth of the pool, has been
    /// charged.
    #[inline(always)]
    pub fn new(pool: &'a Pool, book: &'a Book, growth: u64) -> Self {
        Promise::partly(pool, book, growth, growth)
    }

    /// Makes a guard for a call. `paid` bytes of `growth`, the largest possible growth of the pool,
    /// have been charged.
    #[inline(always)]
    pub fn partly(pool: &'a Pool, book: &'a Book, paid: u64, growth: u64) -> Self {
        Promise {
            pool,
            book,
            paid,
            growth,
        }
    }

    /// Ends the call as [`Pool::settle`] describes.
    #[inline(always)]
    pub fn settle(self, range: Option<Range<DevicePtr>>) -> bool {
        let (pool, book, growth) = (self.pool, self.book, self.growth);
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
        abandon(self.pool, self.book, self.paid, self.growth);
    }
}

/// Ends the promise to a call that was not made or has panicked.
#[cold]
#[inline(never)]
fn abandon(pool: &Pool, book: &Book, paid: u64, growth: u64) {
    pool.abandon(book, paid, growth);
}

/// A guard that exists after a pool has used up the last headroom, until the growth is charged or
/// undone.
pub struct Growth<'a>(pub &'a Book);

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut headroom = self.0.pools.change(self.0);
        headroom.own.growing = headroom.own.growing.saturating_sub(1);
    }
}

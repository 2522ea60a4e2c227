//! The only door to the atomic operations of this crate.
//!
//! The file is made of [`AtomicU64`] from `std`. Under `--cfg loom` it is that of the models, whose
//! operations are steps there. The charge algorithm is written against [`Word`], so that it runs on
//! loom's own atomics as well.

#[cfg(all(test, loom))]
pub(crate) use super::model::word::{AtomicU64, fence};
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// A 64-bit atomic word.
pub(super) trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Adds and returns the value before.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Subtracts and returns the value before.
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    /// A memory fence of the same world as the word.
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

#[cfg(all(test, loom))]
impl Word for loom::sync::atomic::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }

    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

//! The atomic operations of this crate. Only this module uses `std::sync::atomic` directly.
//!
//! Under `--cfg loom`, the module `model` defines the words of the ledger file, and a model checker
//! controls every operation. The charge algorithm is generic over [`Word`], so that it also runs on
//! loom's atomics.

#[cfg(all(test, loom))]
pub(crate) use super::model::word::{AtomicU64, fence};
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// A 64-bit atomic word.
pub(super) trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Adds to the word and returns the word's previous value.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Subtracts from the word and returns the word's previous value.
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    /// Replaces the value `before` by `after`. Returns the present value if it is another one.
    fn replace(&self, before: u64, after: u64, set: Ordering) -> Result<u64, u64>;
    /// Issues a memory fence. In a model, the model checker simulates the fence.
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
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
    fn replace(&self, before: u64, after: u64, set: Ordering) -> Result<u64, u64> {
        self.compare_exchange(before, after, set, Ordering::Relaxed)
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

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }

    fn replace(&self, before: u64, after: u64, set: Ordering) -> Result<u64, u64> {
        self.compare_exchange(before, after, set, Ordering::Relaxed)
    }

    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

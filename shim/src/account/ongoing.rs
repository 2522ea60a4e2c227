//! A guard that counts calls under way.

use std::sync::atomic::{AtomicU32, Ordering};

/// A call that is under way: a counter includes the call while the guard exists.
pub struct Ongoing<'a>(&'a AtomicU32);

impl<'a> Ongoing<'a> {
    pub fn begin(calls: &'a AtomicU32) -> Self {
        calls.fetch_add(1, Ordering::SeqCst);
        Ongoing(calls)
    }
}

impl Drop for Ongoing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

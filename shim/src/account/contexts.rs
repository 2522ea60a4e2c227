//! The contexts that this process has on one device.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::Process;
use super::book::Book;
use crate::abi::Context;
use crate::driver::{answer, cuda};

/// `CU_CTX_SCHED_BLOCKING_SYNC` among the ways in which a context waits.
const SCHED_MASK: u32 = 7;
const SCHED_BLOCKING_SYNC: u32 = 4;

/// A context of this process was seen that sleeps while it waits for the GPU.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// A context has these flags.
pub fn note_flags(flags: u32) {
    if flags & SCHED_MASK == SCHED_BLOCKING_SYNC {
        SLEEPS.store(true, Ordering::Relaxed);
    }
}

/// Whether a context of this process may sleep while it waits for the GPU: calls that wait, as
/// `cuMemFree` does, are cancellation points then (measured, H200, 580.159).
#[inline]
pub fn may_sleep() -> bool {
    SLEEPS.load(Ordering::Relaxed)
}

/// The current context of this thread, of a green one the context that it is in; 0 for none.
pub fn current_context() -> Context {
    let context = answer(cuda::cuCtxGetCurrent).unwrap_or(0);
    Process::current().greens.holder(context)
}

/// The contexts of one device.
#[derive(Default)]
pub struct Contexts {
    /// Held while one is made.
    pub making: Mutex<()>,
    all: RwLock<Vec<Context>>,
    /// Handle of the primary one; 0 until it was retained.
    pub primary: AtomicUsize,
    /// How often the primary one is retained, as far as this process has been seen to.
    retained: AtomicUsize,
}

impl Contexts {
    /// One was made.
    pub fn insert(&self, context: Context) {
        let mut contexts = self.all.write();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }

    /// One has gone.
    pub fn remove(&self, context: Context) {
        self.all.write().retain(|known| *known != context);
    }

    pub fn count(&self) -> usize {
        self.all.read().len()
    }

    /// Whether the context is one of them.
    pub fn has(&self, context: Context) -> bool {
        self.all.read().contains(&context)
    }

    pub fn all(&self) -> Vec<Context> {
        self.all.read().clone()
    }

    /// The primary context has been retained once more.
    pub fn retained(&self) {
        self.retained.fetch_add(1, Ordering::AcqRel);
    }

    /// The primary context has been released once, and perhaps `has_ended` with that.
    pub fn released(&self, has_ended: bool) {
        let left = |count: usize| {
            Some(if has_ended {
                0
            } else {
                count.saturating_sub(1)
            })
        };
        let _ = self
            .retained
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
    }

    /// Whether the primary context may end when it is released next.
    pub fn is_last_release(&self) -> bool {
        self.retained.load(Ordering::Acquire) <= 1
    }

    /// Of the `used` bytes of the driver's part, what the group does not count: the contexts, where
    /// it does not want them counted.
    pub fn uncounted(&self, book: &Book, used: u64) -> u64 {
        if book.counts_contexts() {
            return 0;
        }
        match (self.count() as u64, book.context_hint()) {
            (0, _) => 0,
            // The first of the machine, not measured yet.
            (_, 0) => used,
            (contexts, each) => used.min(contexts.saturating_mul(each)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once() {
        let contexts = Contexts::default();
        for context in [7, 8, 9, 8] {
            contexts.insert(context);
        }
        assert_eq!((contexts.count(), contexts.all()), (3, vec![7, 8, 9]));
        assert!(contexts.has(8) && !contexts.has(10));
        contexts.remove(8);
        contexts.remove(8);
        assert_eq!((contexts.count(), contexts.all()), (2, vec![7, 9]));
    }
}

//! The contexts that this process has on one device.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::Process;
use super::book::Book;
use crate::abi::{Context, Out};
use crate::driver::cuda;

/// The bits of a context's flags that say how it waits, and the value `CU_CTX_SCHED_BLOCKING_SYNC`
/// of them.
const SCHED_MASK: u32 = 7;
const SCHED_BLOCKING_SYNC: u32 = 4;

/// Whether a context of this process was seen that sleeps while it waits for the GPU.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// Notes the flags of a context.
pub fn note_flags(flags: u32) {
    if flags & SCHED_MASK == SCHED_BLOCKING_SYNC {
        SLEEPS.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a context of this process may sleep while it waits for the GPU. Calls that wait,
/// as `cuMemFree` does, are cancellation points of a thread then (measured, H200, 580.159).
#[inline]
pub fn may_sleep() -> bool {
    SLEEPS.load(Ordering::Relaxed)
}

/// Returns the current context of this thread, 0 for none. For a green context this is the context
/// that it is part of.
pub fn current_context() -> Context {
    let mut context = 0;
    cuda::cuCtxGetCurrent(Out::of(&mut context));
    Process::current().greens.holder(context)
}

/// The contexts of one device.
#[derive(Default)]
pub struct Contexts {
    /// Held while a context is made.
    pub making: Mutex<()>,
    all: RwLock<Vec<Context>>,
    /// The handle of the primary context; 0 until it was retained.
    pub primary: AtomicUsize,
    /// The number of times that the primary context is retained, as far as hooks have seen.
    retained: AtomicUsize,
}

impl Contexts {
    /// Records a context that was made.
    pub fn insert(&self, context: Context) {
        let mut contexts = self.all.write();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }

    /// Removes a context that is gone.
    pub fn remove(&self, context: Context) {
        self.all.write().retain(|known| *known != context);
    }

    pub fn count(&self) -> usize {
        self.all.read().len()
    }

    /// Returns whether `context` is a context of this device.
    pub fn has(&self, context: Context) -> bool {
        self.all.read().contains(&context)
    }

    pub fn all(&self) -> Vec<Context> {
        self.all.read().clone()
    }

    /// Counts one more retain of the primary context.
    pub fn retained(&self) {
        self.retained.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one release of the primary context. `has_ended`: the context has ended with it.
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

    /// Returns whether the primary context may end with its next release.
    pub fn is_last_release(&self) -> bool {
        self.retained.load(Ordering::Acquire) <= 1
    }

    /// Returns the bytes of the driver's part that the group does not count: those of the contexts,
    /// where the group's options leave contexts out. The driver's part has `used` bytes.
    pub fn uncounted(&self, book: &Book, used: u64) -> u64 {
        if book.counts_contexts() {
            return 0;
        }
        match (self.count() as u64, book.context_hint()) {
            (0, _) => 0,
            // The first context on this machine, not measured yet.
            (_, 0) => used,
            (contexts, each) => used.min(contexts.saturating_mul(each)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_context_counts_once() {
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

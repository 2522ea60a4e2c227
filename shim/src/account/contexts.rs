//! The CUDA contexts that this process has on one device.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::Process;
use super::book::Book;
use crate::abi::{Context, Out};
use crate::driver::cuda;

/// The bytes of a context that was not measured: more than any known context takes.
pub const LARGEST: u64 = 1 << 30;

/// Returns the calling thread's current context, or 0. For a green context, returns its primary
/// context.
pub fn current_context() -> Context {
    let mut context = 0;
    cuda::cuCtxGetCurrent(Out::of(&mut context));
    Process::current().greens.holder(context)
}

/// The contexts of one device.
#[derive(Default)]
pub struct Contexts {
    /// A lock that a thread holds while it creates a context.
    pub making: Mutex<()>,
    all: RwLock<Vec<Context>>,
    /// The handle of the device's primary context; 0 before the program first retains that context.
    pub primary: AtomicUsize,
    /// The number of times that the program has retained the primary context, as far as hooks have
    /// seen.
    retained: AtomicUsize,
}

impl Contexts {
    /// Records a context that the driver has made.
    pub fn insert(&self, context: Context) {
        let mut contexts = self.all.write();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }

    /// Removes a context that has been destroyed.
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

    pub fn retained(&self) {
        self.retained.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one release of the primary context. `has_ended`: the driver has destroyed the context
    /// at this release.
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

    /// Returns whether the next release of the primary context can destroy this context.
    pub fn is_last_release(&self) -> bool {
        self.retained.load(Ordering::Acquire) <= 1
    }

    /// Returns how many of the `used` bytes belong to contexts that the group does not count.
    pub fn uncounted(&self, book: &Book, used: u64) -> u64 {
        if book.group.member().counts_contexts() {
            return 0;
        }
        match (self.count() as u64, book.group.context_hint()) {
            (0, _) => 0,
            // No process has measured the size of a context on this GPU yet.
            (contexts, 0) => used.min(contexts.saturating_mul(LARGEST)),
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

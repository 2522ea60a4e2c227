//! The contexts that this process has on one device.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use super::Process;
use crate::abi::{Context, Out};
use crate::driver::cuda;

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

/// Whether a context of this process may sleep while it waits for the GPU: calls that wait, as `cuMemFree` does, are cancellation points then
/// (measured, H200, 580.159).
#[inline]
pub fn may_sleep() -> bool {
    SLEEPS.load(Ordering::Relaxed)
}

/// The current context of this thread, of a green one the context that it is in; 0 for none.
pub fn current_context() -> Context {
    let mut context = 0;
    cuda::cuCtxGetCurrent(Out::of(&mut context));
    Process::current().greens.holder(context)
}

#[derive(Default)]
pub struct Contexts(RwLock<Vec<Context>>);

impl Contexts {
    /// One was made.
    pub fn insert(&self, context: Context) {
        let mut contexts = self.0.write();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }

    /// One has gone.
    pub fn remove(&self, context: Context) {
        self.0.write().retain(|known| *known != context);
    }

    pub fn count(&self) -> usize {
        self.0.read().len()
    }

    /// Whether the context is one of them.
    pub fn has(&self, context: Context) -> bool {
        self.0.read().contains(&context)
    }

    pub fn all(&self) -> Vec<Context> {
        self.0.read().clone()
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

//! The device memory that a CUDA context sets aside for its kernels. The context's limits
//! (`cuCtxSetLimit`) and the needs of the kernels determine the sizes.
//!
//! Measured (H100, 580.159.04):
//! - Local memory: a context takes each thread's local memory, a multiple of 16 bytes, for every
//!   thread that the GPU can hold. The size is rounded *down* to whole blocks.
//! - A larger stack limit takes local memory, and so does the first launch of a kernel that needs
//!   more. A smaller limit frees memory.
//! - A launch for which the GPU has no room fails and frees the context's local memory.
//! - Device runtime: the first loaded code that uses device `printf` takes 62 MiB. For `assert`,
//!   this is 90 MiB, and for `malloc` 138 MiB. Each size includes the smaller ones.
//! - Heap: the first launch that uses device `malloc` takes the whole heap. Its bytes are charged
//!   when the heap limit is set or such code is loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::rounding::{BLOCK, round_up};
use crate::abi::{
    ATTRIBUTE_MULTIPROCESSOR_THREADS, ATTRIBUTE_MULTIPROCESSORS, Context, Device as Ordinal,
};
use crate::account::locks::{Place, hold};
use crate::account::maps::Map;
use crate::driver::devices;
use crate::image::Needs;

/// The local memory per thread that every context has from the start, in bytes.
const START: u64 = 1024;
/// The local memory per thread is always a multiple of this number of bytes.
const GRAIN: u64 = 16;

/// A context takes these bytes plus 1 MiB per multiprocessor (assumed) when it first loads code
/// that uses device `malloc`.
const TABLES: u64 = 6 << 20;

/// Bytes that a context takes when it first loads code that uses device `assert` or `printf`.
const ASSERT: u64 = 90 << 20;
const PRINTF: u64 = 62 << 20;

/// The memory that contexts of one device set aside for kernels.
pub struct KernelMemory {
    multiprocessors: u64,
    /// The number of threads that the GPU can hold at once.
    threads: u64,
    contexts: RwLock<Map<Context, Arc<ContextMemory>>>,
}

/// The memory that one context sets aside for kernels.
pub struct ContextMemory {
    /// A reader-writer lock. A change of this memory holds the write lock. A launch with much local
    /// memory holds a read lock.
    pub alone: RwLock<()>,
    /// The stack limit: the local memory of every thread in bytes. The driver can enlarge the
    /// memory later.
    per_thread: AtomicU64,
    /// Bytes of device memory that the local memory takes; 0 after the driver has freed it.
    backing: AtomicU64,
    /// Bytes that are charged in advance for the heap of device `malloc`.
    pub heap: AtomicU64,
    /// Bytes that loaded code has taken for the device runtime.
    pub runtime: AtomicU64,
}

impl KernelMemory {
    pub fn of(ordinal: Ordinal) -> Self {
        let attribute = |which| devices::attribute(which, ordinal).unwrap_or(0);
        KernelMemory::with(
            attribute(ATTRIBUTE_MULTIPROCESSORS),
            attribute(ATTRIBUTE_MULTIPROCESSOR_THREADS),
        )
    }

    fn with(multiprocessors: u64, each: u64) -> Self {
        KernelMemory {
            multiprocessors,
            threads: multiprocessors * each,
            contexts: RwLock::default(),
        }
    }

    /// Returns the bytes of device memory that the local memory of a new context takes.
    pub fn start(&self) -> u64 {
        self.backing(START)
    }

    /// Returns the bytes that a context has taken for the device runtime in total, after code with
    /// the given needs was loaded.
    pub fn runtime(&self, needs: Needs) -> u64 {
        let malloc = round_up((self.multiprocessors << 20).saturating_add(TABLES), BLOCK);
        [
            (needs.device_malloc, malloc),
            (needs.device_assert, ASSERT),
            (needs.device_printf, PRINTF),
        ]
        .into_iter()
        .find_map(|(uses, bytes)| uses.then_some(bytes))
        .unwrap_or(0)
    }

    /// Returns whether `per_thread` bytes of local memory exceed what a new context has. Larger
    /// local memory can be freed before the context ends.
    pub fn is_large(&self, per_thread: u64) -> bool {
        per_thread > START
    }

    /// Returns the bytes of device memory that a context's local memory takes if every thread has
    /// `per_thread` bytes.
    pub fn backing(&self, per_thread: u64) -> u64 {
        round_up(per_thread, GRAIN).saturating_mul(self.threads) / BLOCK * BLOCK
    }

    /// Returns the kernel memory of a context. An unknown context is recorded with the memory of a
    /// new context.
    pub fn context(&self, context: Context) -> Arc<ContextMemory> {
        if let Some(known) = self.contexts.read().get(&context) {
            return Arc::clone(known);
        }
        let mut contexts = self.contexts.write();
        Arc::clone(contexts.entry(context).or_insert_with(|| {
            Arc::new(ContextMemory {
                alone: RwLock::new(()),
                per_thread: AtomicU64::new(START),
                backing: AtomicU64::new(self.start()),
                heap: AtomicU64::new(0),
                runtime: AtomicU64::new(0),
            })
        }))
    }

    /// Removes the record of a destroyed context. Returns the bytes that were charged in advance
    /// for its device `malloc` heap.
    pub fn forget(&self, context: Context) -> u64 {
        let Some(gone) = self.contexts.write().remove(&context) else {
            return 0;
        };
        // Waits until the calls under way in the context have settled their charges.
        let _alone = hold(Place::Alone, || gone.alone.write());
        gone.heap.swap(0, Ordering::AcqRel)
    }

    /// Returns the bytes by which the local memory of `context` grows at a launch with `per_thread`
    /// bytes per thread.
    pub fn growth(&self, context: &ContextMemory, per_thread: u64) -> u64 {
        self.backing(per_thread.max(context.per_thread()))
            .saturating_sub(context.backing())
    }

    /// Records that every thread of `context` has `per_thread` bytes of local memory. Returns the
    /// change of the context's device memory in bytes.
    pub fn set(&self, context: &ContextMemory, per_thread: u64) -> i64 {
        let backing = self.backing(per_thread);
        context.per_thread.store(per_thread, Ordering::Release);
        let before = context.backing.swap(backing, Ordering::AcqRel);
        backing.wrapping_sub(before) as i64
    }
}

impl ContextMemory {
    /// Returns the stack limit of the context, in bytes per thread.
    pub fn per_thread(&self) -> u64 {
        self.per_thread.load(Ordering::Acquire)
    }

    /// Returns the bytes of device memory that the context's local memory takes.
    pub fn backing(&self) -> u64 {
        self.backing.load(Ordering::Acquire)
    }

    /// Returns whether a failed call has freed the context's local memory. `before` and `after`:
    /// the size of the driver's own memory.
    pub fn is_dropped(&self, before: u64, after: u64) -> bool {
        // Other threads may change the size too. So a decrease by half of the local memory counts
        // as evidence.
        let backing = self.backing();
        let dropped = backing > 0 && before.saturating_sub(after) >= backing / 2;
        if dropped {
            self.backing.store(0, Ordering::Release);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The expected sizes were measured on an H100 with driver 580.159.04.
    #[test]
    fn grows_as_measured() {
        let memory = KernelMemory::with(132, 2048);
        assert_eq!(memory.start(), 264 * MIB);
        assert!(memory.is_large(START + 1) && !memory.is_large(START));
        let malloc = Needs {
            device_malloc: true,
            ..Needs::default()
        };
        assert_eq!(memory.runtime(malloc), 138 * MIB);
        assert_eq!(memory.runtime(Needs::default()), 0);
        let assert = Needs {
            device_assert: true,
            ..Needs::default()
        };
        assert_eq!(memory.runtime(assert), 90 * MIB);
        let printf = Needs {
            device_printf: true,
            ..Needs::default()
        };
        assert_eq!(memory.runtime(printf), 62 * MIB);
        for (per_thread, taken) in [
            (2048, 264),
            (4096, 528),
            (4097, 4),
            (5000, 230),
            (16_384, 2934),
        ] {
            let context = memory.context(7);
            assert_eq!(memory.growth(&context, per_thread), taken * MIB);
            assert_eq!(memory.set(&context, per_thread), taken as i64 * MIB as i64);
        }
        let context = memory.context(7);
        assert_eq!(memory.set(&context, 2048), -3696 * MIB as i64);
        assert_eq!(memory.growth(&context, 4096), 528 * MIB);
        let context = memory.context(8);
        assert_eq!(memory.growth(&context, 1024), 0);
        assert_eq!(memory.growth(&context, 1104), 20 * MIB);
        assert_eq!(memory.growth(&context, 262_144), 67_320 * MIB);
        assert_eq!(memory.backing(1), 4 * MIB);
        assert_eq!(memory.backing(512), 132 * MIB);
        assert!(memory.growth(&context, u64::MAX) > 1 << 60);
    }

    #[test]
    fn dropped_local_memory_is_taken_again() {
        let memory = KernelMemory::with(132, 2048);
        let context = memory.context(7);
        assert!(!context.is_dropped(518 * MIB, 418 * MIB));
        assert!(context.is_dropped(518 * MIB, 104 * MIB));
        assert_eq!(memory.growth(&context, 0), 264 * MIB);
        assert_eq!(memory.growth(&context, 4096), 1056 * MIB);
        assert!(
            !context.is_dropped(518 * MIB, 104 * MIB),
            "the context has no local memory"
        );
    }

    #[test]
    fn a_context_that_has_gone_leaves_nothing() {
        let memory = KernelMemory::with(1, 2048);
        let context = memory.context(7);
        memory.set(&context, 4096);
        context.heap.store(64 * MIB, Ordering::Relaxed);
        assert_eq!(memory.forget(7), 64 * MIB);
        assert_eq!(memory.forget(7), 0);
        assert_eq!(memory.context(7).per_thread(), 1024);
    }
}

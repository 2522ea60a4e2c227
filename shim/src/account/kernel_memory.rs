//! The memory that a context sets aside for its kernels: local memory for every thread that the GPU
//! can hold, the heap of device `malloc`, and what the device's runtime needs besides. The limits
//! of the context (`cuCtxSetLimit`) and the needs of its kernels tell how much, before it is taken.
//!
//! Measured (H100, 580.159.04): local memory is a multiple of 16 bytes per thread, times the
//! threads, rounded *down* to whole blocks. It is taken when the stack limit is set, or at the
//! first launch of a kernel that needs more, which raises the limit. Lowering the limit gives it
//! back. A launch that the GPU has no room for frees the local memory that there is. Code that uses
//! device `printf`, `assert` or `malloc` takes 62, 90 or 138 MiB when the first such code is
//! loaded, each including the one before, whatever the limits are. The heap is taken in full at the
//! first launch of a kernel that uses `malloc`; it is charged ahead where its limit is set, or when
//! such code is loaded.

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

/// Local memory per thread that every context has from the start, bytes.
const START: u64 = 1024;
/// Local memory per thread is a multiple of this, bytes.
const GRAIN: u64 = 16;

/// Bytes that the first code in a context that uses device `malloc` takes beside 1 MiB for each
/// multiprocessor. Together these are 138 MiB on an H100 (measured); it is not known which part of
/// that depends on the multiprocessors.
const TABLES: u64 = 6 << 20;

/// Bytes that the first code in a context that uses device `assert`, or `printf`, takes.
const ASSERT: u64 = 90 << 20;
const PRINTF: u64 = 62 << 20;

/// The memory for kernels on one device.
pub struct KernelMemory {
    multiprocessors: u64,
    /// The number of threads that the device can hold at once.
    threads: u64,
    contexts: RwLock<Map<Context, Arc<ContextMemory>>>,
}

/// The memory for kernels of one context.
pub struct ContextMemory {
    /// Held exclusively through a call that may change this memory, and shared through launches
    /// that rely on more than a context has from the start.
    pub alone: RwLock<()>,
    /// The stack limit in bytes: the local memory that every thread has, or gets with the next
    /// growth.
    per_thread: AtomicU64,
    /// Bytes of device memory behind `per_thread`; 0 after the driver has dropped it.
    backing: AtomicU64,
    /// Bytes that are charged ahead for the heap.
    pub heap: AtomicU64,
    /// Bytes that code has taken for the device's runtime.
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

    /// Returns the bytes of local memory that every context takes from the start.
    pub fn start(&self) -> u64 {
        self.backing(START)
    }

    /// Returns the bytes that a context has taken for the device's runtime once code with these
    /// needs is loaded.
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

    /// Returns whether kernels with this need rely on more local memory than every context has from
    /// the start. That surplus may be lowered again.
    pub fn is_large(&self, per_thread: u64) -> bool {
        per_thread > START
    }

    /// Returns the bytes of device memory behind `per_thread` bytes of local memory.
    pub fn backing(&self, per_thread: u64) -> u64 {
        round_up(per_thread, GRAIN).saturating_mul(self.threads) / BLOCK * BLOCK
    }

    /// Returns the memory of a context of this device. A context that is not known yet is recorded
    /// as one that was just made.
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

    /// Removes a context that is gone. Returns the bytes that were charged ahead for its heap.
    pub fn forget(&self, context: Context) -> u64 {
        let Some(gone) = self.contexts.write().remove(&context) else {
            return 0;
        };
        // Waits until calls under way in the context have settled.
        let _alone = hold(Place::Alone, || gone.alone.write());
        gone.heap.swap(0, Ordering::AcqRel)
    }

    /// Returns the bytes by which the local memory of `context` grows at the launch of a kernel
    /// that needs `per_thread` bytes.
    pub fn growth(&self, context: &ContextMemory, per_thread: u64) -> u64 {
        self.backing(per_thread.max(context.per_thread()))
            .saturating_sub(context.backing())
    }

    /// Records that every thread of `context` has `per_thread` bytes of local memory. Returns the
    /// change in bytes of device memory.
    pub fn set(&self, context: &ContextMemory, per_thread: u64) -> i64 {
        let backing = self.backing(per_thread);
        context.per_thread.store(per_thread, Ordering::Release);
        let before = context.backing.swap(backing, Ordering::AcqRel);
        backing.wrapping_sub(before) as i64
    }
}

impl ContextMemory {
    /// Returns the stack limit, bytes.
    pub fn per_thread(&self) -> u64 {
        self.per_thread.load(Ordering::Acquire)
    }

    /// Returns the bytes of device memory behind the stack limit.
    pub fn backing(&self) -> u64 {
        self.backing.load(Ordering::Acquire)
    }

    /// Returns whether the driver has dropped the local memory, after a call failed for which it
    /// was to grow. The driver's part went from `before` to `after` bytes.
    pub fn is_dropped(&self, before: u64, after: u64) -> bool {
        // Half of the local memory is enough as evidence, because other threads take and free
        // memory too.
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

    /// The figures are those of an H100 with driver 580.159.04.
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
            "there is no local memory to drop"
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

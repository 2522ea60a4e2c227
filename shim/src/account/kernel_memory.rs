//! The device memory that a CUDA context sets aside for its kernels: local memory for every thread
//! that the GPU can hold, the heap of device `malloc`, and the tables of the device runtime. The
//! limits of the context (`cuCtxSetLimit`) and the needs of its kernels tell the size of this
//! memory before the driver takes it.
//!
//! Measured (H100, 580.159.04): the local memory of a context is a multiple of 16 bytes per thread,
//! times the threads that the GPU can hold, rounded *down* to whole blocks. The driver takes it
//! when the program sets the stack limit, or at the first launch of a kernel that needs more local
//! memory, which raises the limit. Lowering the limit frees it. A launch for whose local memory the
//! GPU has no room frees the context's present local memory. Code that uses device `printf`,
//! `assert` or `malloc` takes 62, 90 or 138 MiB when the first such code is loaded, whatever the
//! limits are; each of these sizes includes the one before it. The heap of device `malloc` is taken
//! in full at the first launch of a kernel that uses `malloc`; its bytes are charged ahead when the
//! program sets the heap limit, or when such code is loaded.

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
/// The local memory per thread is a multiple of this many bytes.
const GRAIN: u64 = 16;

/// Bytes that the first code in a context that uses device `malloc` takes beyond 1 MiB for each
/// multiprocessor. The total is 138 MiB on an H100 (measured); which part of it depends on the
/// number of multiprocessors is not known.
const TABLES: u64 = 6 << 20;

/// Bytes that the first code in a context that uses device `assert` takes, and (`PRINTF`) the first
/// code that uses device `printf`.
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
    /// Held exclusively during a call that may change this memory, and shared during launches of
    /// kernels that need more local memory than a context has from the start.
    pub alone: RwLock<()>,
    /// The stack limit in bytes: the local memory that every thread has, or gets when the driver
    /// next enlarges the local memory.
    per_thread: AtomicU64,
    /// Bytes of device memory behind `per_thread`; 0 after the driver has freed the local memory.
    backing: AtomicU64,
    /// Bytes that are charged ahead for the heap of device `malloc`.
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

    /// Returns the total bytes that a context has taken for the device runtime once code with these
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

    /// Returns whether kernels that need `per_thread` bytes use more local memory than every
    /// context has from the start. The program may lower a context's local memory above that size
    /// again.
    pub fn is_large(&self, per_thread: u64) -> bool {
        per_thread > START
    }

    /// Returns the bytes of device memory that `per_thread` bytes of local memory per thread take.
    pub fn backing(&self, per_thread: u64) -> u64 {
        round_up(per_thread, GRAIN).saturating_mul(self.threads) / BLOCK * BLOCK
    }

    /// Returns the kernel memory of a context of this device. An unknown context is recorded with
    /// the memory of a new context.
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

    /// Removes the record of a destroyed context. Returns the bytes that were charged ahead for its
    /// heap.
    pub fn forget(&self, context: Context) -> u64 {
        let Some(gone) = self.contexts.write().remove(&context) else {
            return 0;
        };
        // Waits until the calls under way in the context have settled their charges.
        let _alone = hold(Place::Alone, || gone.alone.write());
        gone.heap.swap(0, Ordering::AcqRel)
    }

    /// Returns the bytes by which the local memory of `context` grows at the launch of a kernel
    /// that needs `per_thread` bytes of it.
    pub fn growth(&self, context: &ContextMemory, per_thread: u64) -> u64 {
        self.backing(per_thread.max(context.per_thread()))
            .saturating_sub(context.backing())
    }

    /// Records that every thread of `context` has `per_thread` bytes of local memory. Returns the
    /// change of the device memory behind it, in bytes.
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

    /// Returns whether the driver has freed the context's local memory during a failed call that
    /// was to enlarge it. During that call the driver's own memory went from `before` to `after`
    /// bytes.
    pub fn is_dropped(&self, before: u64, after: u64) -> bool {
        // A decrease by half of the local memory is taken as evidence, because other threads take
        // and free memory meanwhile too.
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

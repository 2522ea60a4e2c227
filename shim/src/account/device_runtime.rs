//! The memory of the CUDA device runtime (device-side `printf`, `assert`, `malloc`). The first
//! loaded code that uses the runtime takes this memory.

use std::sync::atomic::Ordering;

use super::device::Device;
use super::driver_part::Prepaid;
use super::kernel_memory::ContextMemory;
use super::rounding::{BLOCK, round_up};
use crate::abi::{Context, LIMIT_MALLOC_HEAP_SIZE, SUCCESS, Status};
use crate::driver::context_limit::{ContextLimit, limit_of};
use crate::image::Needs;

/// Returns the bytes of a device `malloc` heap: `limit` rounded up to whole blocks, and one block
/// more (measured).
pub fn heap(limit: u64) -> u64 {
    round_up(limit, BLOCK).saturating_add(BLOCK)
}

/// The bytes that a context takes for the device runtime when a program loads code that uses device
/// `printf`, `assert` or `malloc`.
#[derive(Clone, Copy, Default)]
pub struct Runtime {
    /// All bytes that the context has taken for the device runtime after the code is loaded.
    level: u64,
    /// Bytes that the context takes for the device runtime when the code is loaded.
    pub tables: u64,
    /// Bytes that the context takes for the device `malloc` heap when the code is launched; 0 if
    /// they are charged already.
    pub heap: u64,
}

impl Runtime {
    pub fn of(says: Needs, device: &Device, context: Context, memory: &ContextMemory) -> Runtime {
        if !Runtime::is_new(says, device, memory) {
            return Runtime::default();
        }
        let level = device.kernels.runtime(says);
        let tables = level.saturating_sub(memory.runtime.load(Ordering::Acquire));
        let is_kept = memory.heap.load(Ordering::Acquire) > 0;
        let heap = match limit_of(context, LIMIT_MALLOC_HEAP_SIZE) {
            ContextLimit::Free(bytes) if says.device_malloc && !is_kept => heap(bytes as u64),
            _ => 0,
        };
        Runtime {
            level,
            tables,
            heap,
        }
    }

    /// Returns whether loading code makes the context take more memory for the device runtime.
    /// `says`: the needs in the code's image.
    pub fn is_new(says: Needs, device: &Device, memory: &ContextMemory) -> bool {
        says.uses_runtime() && device.kernels.runtime(says) > memory.runtime.load(Ordering::Acquire)
    }

    /// Sets aside bytes of `paid` for the device `malloc` heap. They stay charged until the context
    /// takes the heap.
    pub fn keep(self, paid: &mut Prepaid<'_>, memory: &ContextMemory) {
        if self.heap > 0 {
            memory.heap.store(self.heap, Ordering::Release);
            paid.reserve(self.heap);
        }
    }

    /// Records the result of loading the code. `grown`: the measured growth of the driver's own
    /// memory; `None` where NVML gives no figure.
    pub fn conclude(
        self,
        device: &Device,
        memory: &ContextMemory,
        status: Status,
        grown: Option<u64>,
    ) {
        if status == SUCCESS {
            memory.runtime.fetch_max(self.level, Ordering::AcqRel);
        }
        // If the driver's own memory has not grown, earlier code has set up the device runtime, and
        // perhaps the heap.
        let is_there = status == SUCCESS && grown.is_none_or(|grown| grown >= self.tables / 2);
        if self.heap > 0 && !is_there {
            let kept = memory.heap.swap(0, Ordering::AcqRel);
            device.driver_part.unreserve(&device.book, kept);
        }
    }
}

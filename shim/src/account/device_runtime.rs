//! The memory that the driver sets up in a context for the device's runtime, when the first code
//! that uses the runtime is loaded there.

use std::sync::atomic::Ordering;

use super::device::Device;
use super::driver_part::Prepaid;
use super::kernel_memory::ContextMemory;
use super::rounding::{BLOCK, round_up};
use crate::abi::{Context, LIMIT_MALLOC_HEAP_SIZE, SUCCESS, Status};
use crate::driver::context_limit::{ContextLimit, limit_of};
use crate::image::Needs;

/// Returns the bytes that a heap of device `malloc` takes at the first launch that needs it: its
/// limit rounded up to blocks, and one block more (measured).
pub fn heap(limit: u64) -> u64 {
    round_up(limit, BLOCK).saturating_add(BLOCK)
}

/// The memory that code takes because its image says that it uses the device's runtime, in bytes.
#[derive(Clone, Copy, Default)]
pub struct Runtime {
    /// Bytes that the context has for the runtime once the code is loaded.
    level: u64,
    /// Bytes that the context takes for the runtime when the code is loaded.
    pub tables: u64,
    /// Bytes that the context takes for the heap when the code is launched, where these are not
    /// charged already.
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

    /// Returns whether code with these needs takes memory for the runtime.
    pub fn is_new(says: Needs, device: &Device, memory: &ContextMemory) -> bool {
        says.uses_runtime() && device.kernels.runtime(says) > memory.runtime.load(Ordering::Acquire)
    }

    /// Keeps the heap charged, for which `paid` has paid.
    pub fn keep(self, paid: &mut Prepaid<'_>, memory: &ContextMemory) {
        if self.heap > 0 {
            memory.heap.store(self.heap, Ordering::Release);
            paid.reserve(self.heap);
        }
    }

    /// Records the outcome of loading the code. The driver's part has `grown` by so many bytes,
    /// where that could be measured.
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
        // The driver's part does not grow where other code, whose image does not say so, has used
        // the runtime before; that code may have had the heap taken already.
        let is_there = status == SUCCESS && grown.is_none_or(|grown| grown >= self.tables / 2);
        if self.heap > 0 && !is_there {
            let kept = memory.heap.swap(0, Ordering::AcqRel);
            device.driver_part.unreserve(&device.book, kept);
        }
    }
}

//! What the driver sets up in a context for the device's runtime, when code is first loaded there that uses `malloc` or `assert`.

use std::sync::atomic::Ordering;

use crate::abi::{Context, LIMIT_MALLOC_HEAP_SIZE, SUCCESS, Status};
use crate::account::device::Device;
use crate::account::kernel_memory::{ASSERT, ContextMemory};
use crate::handler::limits::{Limit, heap, is_in_use, limit_of};
use crate::image::Needs;

/// What comes with code whose image says what it uses, bytes.
#[derive(Clone, Copy, Default)]
pub struct Runtime {
    /// When it is loaded.
    pub tables: u64,
    /// When it is launched, where that is not charged already.
    pub heap: u64,
}

impl Runtime {
    /// Whether it may be the first in its context to use something.
    pub fn is_new(says: Needs, memory: &ContextMemory) -> bool {
        let has_malloc = memory.has_malloc.load(Ordering::Acquire);
        let has_assert = has_malloc || memory.has_assert.load(Ordering::Acquire);
        says.device_malloc && !has_malloc || says.device_assert && !has_assert
    }

    pub fn of(says: Needs, device: &Device, context: Context, memory: &ContextMemory) -> Runtime {
        if !Runtime::is_new(says, memory) {
            return Runtime::default();
        }
        if !says.device_malloc {
            return Runtime {
                tables: ASSERT,
                heap: 0,
            };
        }
        match limit_of(context, LIMIT_MALLOC_HEAP_SIZE) {
            // Something is loaded whose image did not say so.
            Limit::Fixed => {
                memory.has_malloc.store(true, Ordering::Release);
                Runtime::default()
            }
            Limit::Unknown => Runtime::default(),
            Limit::Free(bytes) => Runtime {
                tables: device.kernels.malloc_tables(),
                heap: match memory.heap.load(Ordering::Acquire) {
                    0 => heap(bytes as u64),
                    _ => 0,
                },
            },
        }
    }

    /// Keeps the heap charged from here on.
    pub fn keep(self, device: &Device, memory: &ContextMemory) {
        if self.heap > 0 {
            memory.heap.store(self.heap, Ordering::Release);
            device.driver.reserve(device, self.heap);
        }
    }

    /// The code has been loaded, or not, and with that the driver's part has `grown` by so many bytes.
    pub fn conclude(
        self,
        device: &Device,
        context: Context,
        memory: &ContextMemory,
        status: Status,
        grown: Option<u64>,
    ) {
        if self.tables == 0 {
            return;
        }
        if status == SUCCESS && is_in_use(context, LIMIT_MALLOC_HEAP_SIZE) {
            memory.has_malloc.store(true, Ordering::Release);
            return;
        }
        // What is declared need not be called.
        if status == SUCCESS && grown.is_none_or(|grown| grown >= self.tables / 2) {
            memory.has_assert.store(true, Ordering::Release);
        }
        if self.heap > 0 {
            let kept = memory.heap.swap(0, Ordering::AcqRel);
            device.driver.unreserve(device, kept);
        }
    }
}

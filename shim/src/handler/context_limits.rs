//! `cuCtxSetLimit`: charges the memory for the stacks and heaps of kernels before contexts take it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{
    CUDA_ERROR_OUT_OF_MEMORY, Context, LIMIT_MALLOC_HEAP_SIZE, LIMIT_STACK_SIZE, SUCCESS, Status,
};
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::device_runtime::heap;
use crate::account::driver_part::Prepaid;
use crate::account::kernel_memory::ContextMemory;
use crate::account::locks::{Place, hold};
use crate::account::request::Request;
use crate::driver::Real;
use crate::driver::context_limit::{ContextLimit, current_limit};
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};
use crate::handler::loading::note_failure;
use crate::handler::payment::Payment;

/// The size of the heap for device `malloc` where the program sets no limit for it, bytes
/// (measured).
const HEAP: u64 = 8 << 20;

/// `cuCtxSetLimit`: Charges a larger stack limit or device `malloc` heap before the call. Other
/// limits take no memory.
pub fn set(call: Call, real: impl Fn(i32, usize) -> Status, limit: i32, value: usize) -> Status {
    let wanted = match limit {
        LIMIT_STACK_SIZE => value as u64,
        // The GPU has not taken a heap yet, so the whole new heap is charged.
        LIMIT_MALLOC_HEAP_SIZE if value as u64 > HEAP => heap(value as u64),
        // A heap of the default size is charged when code that uses it is loaded.
        LIMIT_MALLOC_HEAP_SIZE => 0,
        _ => return real(limit, value),
    };
    let real = |value| real(limit, value);
    attempt(&|| real(value), || {
        set_charged(call, &real, limit, value, wanted)
    })
}

fn set_charged(
    call: Call,
    real: &dyn Fn(usize) -> Status,
    limit: i32,
    value: usize,
    wanted: u64,
) -> Result<Status, Aside> {
    let device = call.process.current_device()?;
    let handle = match current_context() {
        0 => return Err(Aside::NoDevice),
        handle => handle,
    };
    let context = device.kernels.context(handle);
    let due = || match limit {
        LIMIT_STACK_SIZE => stack_growth(device, &context, wanted),
        _ => wanted.saturating_sub(context.heap.load(Ordering::Acquire)),
    };
    let payment = Payment {
        lock: &|| hold(Place::Alone, || context.alone.write()),
        pay: &|_, paid| {
            match due() {
                // The driver refuses to resize a heap that is in use, so such a call needs no
                // payment.
                _ if limit != LIMIT_STACK_SIZE
                    && matches!(current_limit(limit), ContextLimit::Fixed) =>
                {
                    Ok(())
                }
                due => paid.raise(Request::trimming(due)),
            }
        },
        is_due: &|bytes| due() >= bytes,
    };
    let (_alone, paid) = payment.make(call, device, Prepaid::none(device))?;
    Ok(match limit {
        LIMIT_STACK_SIZE => set_stack(call, device, (handle, &context), paid, real, value),
        _ if matches!(current_limit(limit), ContextLimit::Fixed) => real(value),
        _ => reserve(device, &context.heap, paid, &move || real(value), wanted),
    })
}

/// Returns the bytes by which the context's local memory grows if its stack limit becomes `wanted`
/// bytes per thread.
fn stack_growth(device: &Device, context: &ContextMemory, wanted: u64) -> u64 {
    let backing = device.kernels.backing(wanted);
    // The driver refuses a stack limit that needs more memory than the GPU has, so such a limit
    // needs no payment.
    match backing <= device.capacity {
        true => backing.saturating_sub(context.backing()),
        false => 0,
    }
}

fn set_stack(
    call: Call,
    device: &'static Device,
    (handle, context): (Context, &ContextMemory),
    paid: Prepaid<'_>,
    real: impl Fn(usize) -> Status,
    value: usize,
) -> Status {
    let (before, wanted) = (context.per_thread(), value as u64);
    let growth = stack_growth(device, context, wanted);
    if device.kernels.backing(wanted) < device.kernels.start() {
        // Makes each launch check its local memory again. The launch waits for the end of this
        // call.
        call.process.forget_limits(handle);
    }
    let used = device.driver_part.used();
    let status = real(value);
    let measured = paid.settle().ok();
    if status != SUCCESS {
        note_failure(call, device, (handle, context), used, measured);
        return status;
    }
    let change = device.kernels.set(context, wanted);
    match measured {
        None => device.assume(change),
        Some(measured) if growth > 0 && measured.overrun > 0 => {
            real(before as usize);
            device.kernels.set(context, before);
            device.measure();
            device.refuse(call.symbol, measured.used.saturating_sub(used), None);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        // The context's local memory has shrunk, but the measurement above used the old amount as a
        // lower bound.
        Some(_) if context.backing() < device.kernels.start() => {
            device.measure();
        }
        Some(_) => {}
    }
    status
}

/// Keeps `wanted` bytes charged for the heap that the context takes later. `paid` holds the newly
/// charged part.
fn reserve(
    device: &'static Device,
    kept: &AtomicU64,
    mut paid: Prepaid<'_>,
    real: &dyn Real,
    wanted: u64,
) -> Status {
    let before = kept.load(Ordering::Acquire);
    let status = real.call();
    if status != SUCCESS {
        return status;
    }
    kept.store(wanted, Ordering::Release);
    paid.reserve(wanted.saturating_sub(before));
    drop(paid);
    device
        .driver_part
        .unreserve(&device.book, before.saturating_sub(wanted));
    status
}

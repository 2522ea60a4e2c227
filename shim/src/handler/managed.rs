//! Managed memory of `cuMemAllocManaged` and `__managed__` variables. It is charged in full,
//! because the GPU can come to hold all of it.
//!
//! Where the GPU shares the host's memory, pinned host memory is charged with it: the driver takes
//! both from the same pages, and NVML counts neither. `cuMemHostRegister` takes no new memory: it
//! pins pages that the program has, and that are in its resident size and its memory cgroup.

use gpulimit_base::obstacle::Obstacle;
use gpulimit_ledger::Category;

use crate::abi::{Context, DevicePtr, Opaque, Out, SUCCESS, Status};
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::managed::Allocation;
use crate::account::request::Request;
use crate::account::{BLOCK, round_up};
use crate::driver::{Real, cuda};
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{self, Aside, attempt};

/// The steps in which pinned host memory is charged, in bytes: the largest page of a kernel.
const PAGE: u64 = 64 << 10;

/// `cuMemAllocManaged`: Charges the whole size, in blocks of 2 MiB, on the current device before
/// the call.
pub fn alloc(call: Call, real: &dyn Real, dptr: Out<DevicePtr>, bytesize: usize) -> Status {
    charged(call, real, dptr, bytesize, BLOCK, cuda::cuMemFree_v2)
}

/// `cuMemHostAlloc`, `cuMemAllocHost_v2`: If the current device shares the host's memory, charges
/// the whole size before the call.
pub fn alloc_host(call: Call, real: &dyn Real, pointer: Out<DevicePtr>, bytesize: usize) -> Status {
    charged(call, real, pointer, bytesize, PAGE, cuda::cuMemFreeHost)
}

/// `cuMemAllocHost`: Like [`alloc_host`], with a 32-bit size.
pub fn alloc_host_v1(
    call: Call,
    real: &dyn Real,
    pointer: Out<DevicePtr>,
    bytesize: u32,
) -> Status {
    alloc_host(call, real, pointer, bytesize as usize)
}

/// Charges managed memory, in steps of [`BLOCK`], or pinned host memory, in steps of [`PAGE`].
/// `undo` frees what left less than `keep_free`.
fn charged(
    call: Call,
    real: &dyn Real,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    step: u64,
    undo: fn(DevicePtr) -> Status,
) -> Status {
    attempt(real, || {
        let device = call.process.current_device()?;
        if bytesize == 0 || (step == PAGE && !device.shares_host) {
            return Err(Aside::NoSize);
        }
        aside::check_context()?;
        let bytes = round_up(bytesize as u64, step);
        let mut tries = 0;
        loop {
            let status = take(call, device, bytes, current_context(), &|| {
                (real.call(), dptr.read())
            })?;
            let Some(left) = (status == SUCCESS).then(|| device.below()).flatten() else {
                return Ok(device.note_answer(call.symbol, bytes, status));
            };
            if let Some(address) = dptr.read() {
                free(call, address, &|| undo(address));
            }
            device.again(call.symbol, bytes, left, &mut tries)?;
        }
    })
}

/// `cuMemFreeHost`: Uncharges the memory after the call.
pub fn free_host(call: Call, real: &dyn Real, pointer: DevicePtr) -> Status {
    free(call, pointer, real).unwrap_or_else(|| real.call())
}

/// Charges `bytes` of managed memory, and runs `real`, which takes them.
///
/// The memory stays taken until `context` ends, or if `context` is 0, until it is freed. `real`
/// returns the status and the address or handle.
fn take(
    call: Call,
    device: &Device,
    bytes: u64,
    context: Context,
    real: &dyn Fn() -> (Status, Option<DevicePtr>),
) -> Result<Status, Aside> {
    let charged = device.charge(Request::insisting(call.symbol, bytes))?;
    let possible = call.process.expect_obstacle(Obstacle::ManagedMemory);
    fault::point("managed");
    let (status, taken) = real();
    match (status, taken) {
        (SUCCESS, Some(address)) => {
            possible.stay();
            charged.spend();
            device.book.add(Category::Managed, bytes);
            call.process.managed.insert(
                address,
                Allocation {
                    device: device.ordinal,
                    context,
                    bytes,
                },
            );
        }
        _ => drop(charged),
    }
    Ok(status)
}

/// Charges `bytes` of `__managed__` variables, and runs `real`, which loads their code.
///
/// If `context` is 0, the code is a CUDA library for all contexts. Without a current context, the
/// first device is charged. [`free`] needs the code's handle.
pub fn variables(
    call: Call,
    bytes: u64,
    code: Out<Opaque>,
    context: Context,
    real: &dyn Real,
) -> Status {
    if bytes == 0 {
        return real.call();
    }
    attempt(real, || {
        let current = call.process.current_device();
        let device = current.or_else(|_| call.process.device(0))?;
        let bytes = round_up(bytes, BLOCK);
        let status = take(call, device, bytes, context, &|| {
            (real.call(), code.read().map(|code| code as DevicePtr))
        })?;
        Ok(device.note_answer(call.symbol, bytes, status))
    })
}

/// Frees the managed or pinned memory with the address or code handle `dptr`. Returns `None`,
/// without a driver call, for other values.
pub fn free(call: Call, dptr: DevicePtr, real: &dyn Real) -> Option<Status> {
    let taken = call.process.managed.take(dptr)?;
    let status = real.call();
    if status == SUCCESS {
        call.process.end_obstacle(Obstacle::ManagedMemory, 1);
        if let Ok(device) = call.process.device(taken.device) {
            device.book.remove(Category::Managed, taken.bytes);
            device.book.uncharge(taken.bytes);
        }
    } else {
        call.process.managed.insert(dptr, taken);
    }
    Some(status)
}

//! Managed memory of `cuMemAllocManaged` and `__managed__` variables. It is charged in full,
//! because the GPU can come to hold all of it.

use gpulimit_base::obstacle::Obstacle;
use gpulimit_ledger::Category;

use crate::abi::{Context, DevicePtr, Opaque, Out, SUCCESS, Status};
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::managed::Allocation;
use crate::account::request::Request;
use crate::account::{BLOCK, round_up};
use crate::driver::Real;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};

/// `cuMemAllocManaged`: Charges the whole size, in blocks of 2 MiB, on the current device before
/// the call.
pub fn alloc(call: Call, real: &dyn Real, dptr: Out<DevicePtr>, bytesize: usize) -> Status {
    attempt(real, || {
        let device = call.process.current_device()?;
        if bytesize == 0 {
            return Err(Aside::NoSize);
        }
        take(call, device, bytesize as u64, current_context(), &|| {
            (real.call(), dptr.read())
        })
    })
}

/// Charges `bytes` of managed memory in whole blocks, and runs `real`, which takes them.
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
    let bytes = round_up(bytes, BLOCK);
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
    device.note_answer(call.symbol, bytes, status);
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
        take(call, device, bytes, context, &|| {
            (real.call(), code.read().map(|code| code as DevicePtr))
        })
    })
}

/// Frees the managed memory with the address or code handle `dptr`. Returns `None`, without a
/// driver call, for other values.
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

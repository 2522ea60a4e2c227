//! `cuMemAllocManaged`: charged in full, because the device may come to hold all of it without a call.

use gpulimit_core::ledger::Category;

use super::linear::current_context;
use crate::abi::{CUDA_ERROR_OUT_OF_MEMORY, DevicePtr, Out, SUCCESS, Status};
use crate::account::managed::Allocation;
use crate::account::{BLOCK, round_up};
use crate::hook::{Call, Real};

/// `cuMemAllocManaged`: charged in full, in whole blocks, on the current device before the call.
pub fn alloc(
    call: Call,
    real: impl Fn(Out<DevicePtr>, usize, u32) -> Status,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    flags: u32,
) -> Status {
    let device = match call.process.current_device() {
        Ok(device) if bytesize > 0 => device,
        Ok(_) => return real(dptr, bytesize, flags),
        Err(failed) => {
            return call
                .process
                .unavailable(failed, &|| real(dptr, bytesize, flags));
        }
    };
    let bytes = round_up(bytesize as u64, BLOCK);
    if device.charge(call.symbol, bytes).is_err() {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    let status = real(dptr, bytesize, flags);
    match (status, dptr.read()) {
        (SUCCESS, Some(address)) => {
            device.add(Category::Managed, bytes);
            call.process.managed.insert(
                address,
                Allocation {
                    device: device.ordinal,
                    context: current_context(),
                    bytes,
                },
            );
        }
        _ => device.uncharge(bytes),
    }
    status
}

/// Frees `dptr` if it is managed memory; `None` when it is not.
pub fn free(call: Call, dptr: DevicePtr, real: &dyn Real) -> Option<Status> {
    let taken = call.process.managed.take(dptr)?;
    let status = real.call();
    if status == SUCCESS {
        if let Ok(device) = call.process.device(taken.device) {
            device.remove(Category::Managed, taken.bytes);
            device.uncharge(taken.bytes);
        }
    } else {
        call.process.managed.insert(dptr, taken);
    }
    Some(status)
}

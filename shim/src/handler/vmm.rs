//! Virtual memory management: physical memory is taken by `cuMemCreate` and lives as long as a
//! handle or a mapping.

use gpulimit_ledger::Category;

use crate::abi::{
    AllocationHandle, AllocationProp, Device as Ordinal, DevicePtr, In, Out, SUCCESS, Status,
};
use crate::account::device::Device;
use crate::account::request::Request;
use crate::account::vmm::Announced;
use crate::account::{BLOCK, round_up};
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt, size_on};

/// `cuMemCreate`: charged in whole blocks before the call, on the device of its properties,
/// whatever context is current.
pub fn create(
    call: Call,
    real: &dyn Real,
    handle: Out<AllocationHandle>,
    size: usize,
    prop: In<AllocationProp>,
) -> Status {
    attempt(real, || {
        let device = prop.read().and_then(|prop| prop.location.device());
        let device = call.process.device(device.ok_or(Aside::NothingToCharge)?)?;
        let bytes = round_up(size_on(device, size as u64)?, BLOCK);
        let mark = call.process.mark();
        let charged = device.charge(Request::insisting(call.symbol, bytes))?;
        fault::point("vmm");
        let status = real.call();
        match (status, handle.read()) {
            (SUCCESS, Some(created)) => {
                charged.spend();
                device.book.add(Category::Vmm, bytes);
                call.process.vmm.created(created, device.ordinal, bytes);
            }
            _ => drop(charged),
        }
        device.renew(mark);
        Ok(status)
    })
}

/// `cuMemRelease`: given back after the call that ends the last handle and the last mapping; what
/// other processes may hold, too, stays charged as long as they may.
pub fn release(call: Call, real: &dyn Real, handle: AllocationHandle) -> Status {
    let vmm = &call.process.vmm;
    end(call, || vmm.releasing(handle, leaving(call)), real)
}

/// `cuMemMap`: charges nothing; the memory now lives as long as the mapping, too.
pub fn map(
    call: Call,
    real: &dyn Real,
    ptr: DevicePtr,
    size: usize,
    offset: usize,
    handle: AllocationHandle,
) -> Status {
    let status = real.call();
    if status == SUCCESS {
        let end = offset.saturating_add(size) as u64;
        call.process.vmm.mapped(ptr, handle, end);
    }
    status
}

/// `cuMemUnmap`: one call may end several adjacent mappings. Given back after the call, where it
/// ends the last reference to the memory, as by `cuMemRelease`.
pub fn unmap(call: Call, real: &dyn Real, ptr: DevicePtr, size: usize) -> Status {
    let vmm = &call.process.vmm;
    let announce = || vmm.unmapping(ptr, size as u64, leaving(call));
    end(call, announce, real)
}

/// `cuMemRetainAllocationHandle`: the same handle value, one reference more; charges nothing.
pub fn retain(call: Call, real: &dyn Real, handle: Out<AllocationHandle>) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(handle)) = (status, handle.read()) {
        call.process.vmm.retained(handle, staying(call));
    }
    status
}

/// `cuMemExportToShareableHandle`: charges nothing; with its last handle and mapping here the
/// memory may go to another process.
pub fn export(call: Call, real: &dyn Real, handle: AllocationHandle) -> Status {
    // Before the call: another thread may release it as soon as the descriptor is there.
    if let Some((ordinal, bytes)) = call.process.vmm.exported(handle)
        && let Ok(device) = call.process.device(ordinal)
    {
        device.book.mark_shared(bytes);
    }
    real.call()
}

/// `cuMemImportFromShareableHandle`: charges nothing, as it is charged where it was exported; once
/// the driver shows it for this process it is charged here.
pub fn import(call: Call, real: &dyn Real, handle: Out<AllocationHandle>) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(imported)) = (status, handle.read())
        // Where the driver gives out the same handle again.
        && !call.process.vmm.retained(imported, staying(call))
        && let Some(device) = location(imported)
    {
        call.process.vmm.imported(imported, device);
    }
    status
}

/// The GPU of an allocation.
fn location(handle: AllocationHandle) -> Option<Ordinal> {
    // `CUmemAllocationProp` is twice as large.
    let mut prop = [AllocationProp::default(); 2];
    let asked =
        relaxed(|| cuda::cuMemGetAllocationPropertiesFromHandle(Out::of_all(&mut prop), handle));
    (asked == SUCCESS).then(|| prop[0].location.device())?
}

/// Memory that may go with the call under way: it has no name any more, so that a measurement never
/// takes it for less than it is.
fn leaving(call: Call) -> impl Fn(Ordinal, u64) {
    move |ordinal, bytes| {
        if let Ok(device) = call.process.device(ordinal) {
            device.book.remove(Category::Vmm, bytes);
        }
    }
}

/// Memory that was to go and did not.
fn staying(call: Call) -> impl Fn(Ordinal, u64) {
    move |ordinal, bytes| {
        if let Ok(device) = call.process.device(ordinal) {
            device.book.add(Category::Vmm, bytes);
        }
    }
}

/// A call that may end allocations.
fn end(call: Call, announce: impl Fn() -> Announced, real: &dyn Real) -> Status {
    let mark = call.process.mark();
    let announced = announce();
    // Of what others may hold: whether it is in nobody's figure afterwards.
    let left = announced
        .leaving()
        .and_then(|at| call.process.device(at).ok());
    let before = left.and_then(Device::hidden);
    let status = real.call();
    if status != SUCCESS {
        call.process.vmm.undone(announced, staying(call));
        return status;
    }
    for gone in call.process.vmm.done(announced) {
        if let Ok(device) = call.process.device(gone.device) {
            if gone.shared {
                device.part_with(gone.bytes, gone.size, before);
            } else {
                device.book.uncharge(gone.bytes);
            }
            device.renew(mark);
        }
    }
    status
}

//! Virtual memory management. Memory of `cuMemCreate` stays taken as long as a handle or a mapping
//! exists.

use gpulimit_base::obstacle::Obstacle;
use gpulimit_ledger::Category;

use crate::abi::{
    AllocationHandle, AllocationProp, Device as Ordinal, DevicePtr, In, Out, SUCCESS, Status,
};
use crate::account::charged::Charged;
use crate::account::device::Device;
use crate::account::vmm::Announced;
use crate::account::{BLOCK, round_up};
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};

/// `cuMemCreate`: Charges whole blocks before the call, on the device that the allocation's
/// properties name, whichever context is current. Memory of the host is charged where it is the
/// GPU's, too.
pub fn create(
    call: Call,
    real: &dyn Real,
    handle: Out<AllocationHandle>,
    size: usize,
    prop: In<AllocationProp>,
) -> Status {
    attempt(real, || {
        let place = prop.read().ok_or(Aside::NothingToCharge)?.location;
        let device = place.device().or_else(|| call.process.host_payer());
        let device = call.process.device(device.ok_or(Aside::NothingToCharge)?)?;
        let asked = size as u64;
        if !device.may_hold(asked) {
            return Ok(device.note_answer(call.symbol, asked, real.call()));
        }
        let make = |charged: Charged<'_>| {
            fault::point("vmm");
            let status = real.call();
            match (status, handle.read()) {
                (SUCCESS, Some(created)) => {
                    let bytes = round_up(asked, BLOCK);
                    charged.spend();
                    device.book.add(Category::Vmm, bytes);
                    call.process.vmm.created(created, device.ordinal, bytes);
                }
                _ => drop(charged),
            }
            status
        };
        let undo = || {
            if let Some(created) = handle.read() {
                release(call, &|| cuda::cuMemRelease(created), created);
            }
        };
        Ok(device.take(call.symbol, asked, make, undo)?)
    })
}

/// `cuMemRelease`: Uncharges the memory if its last handle and mapping end. Memory that other
/// processes may hold stays charged.
pub fn release(call: Call, real: &dyn Real, handle: AllocationHandle) -> Status {
    let vmm = &call.process.vmm;
    end(call, || vmm.releasing(handle, take_from_book(call)), real)
}

/// `cuMemMap`: Charges nothing. From now on the memory also lives as long as the mapping.
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

/// `cuMemUnmap`: Uncharged like `cuMemRelease`, for each of the adjacent mappings that the call
/// ends.
pub fn unmap(call: Call, real: &dyn Real, ptr: DevicePtr, size: usize) -> Status {
    let vmm = &call.process.vmm;
    let announce = || vmm.unmapping(ptr, size as u64, take_from_book(call));
    end(call, announce, real)
}

/// `cuMemRetainAllocationHandle`: Charges nothing. The memory's handle gets one more reference.
pub fn retain(call: Call, real: &dyn Real, handle: Out<AllocationHandle>) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(handle)) = (status, handle.read()) {
        call.process.vmm.retained(handle, put_into_book(call));
    }
    status
}

/// `cuMemExportToShareableHandle`: Charges nothing. Marks the memory as shared, because another
/// process can hold it longer than this process does.
pub fn export(call: Call, real: &dyn Real, handle: AllocationHandle) -> Status {
    let possible = call.process.expect_obstacle(Obstacle::ExportedMemory);
    // Another thread can release the memory as soon as the file descriptor exists, so mark the
    // memory as shared first.
    let vmm = &call.process.vmm;
    let known = vmm.exported(handle);
    if let Some((ordinal, bytes @ 1..)) = known
        && let Ok(device) = call.process.device(ordinal)
    {
        device.book.group.mark_shared(bytes as i64);
    }
    let status = real.call();
    // If the memory was freed meanwhile, its obstacle has ended already. Memory that gpulimit does
    // not know, such as memory of the host, stays an obstacle.
    if status == SUCCESS || known.is_some() && !vmm.unexported(handle) {
        possible.stay();
    }
    status
}

/// `cuMemImportFromShareableHandle`: Charges nothing, because the exporting process pays. The
/// importing process pays once NVML attributes the memory to it.
pub fn import(call: Call, real: &dyn Real, handle: Out<AllocationHandle>) -> Status {
    if let Err(refused) = call.process.may_import(call.symbol) {
        return Aside::from(refused).answer(real);
    }
    let possible = call.process.expect_obstacle(Obstacle::ImportedMemory);
    let status = real.call();
    if let (SUCCESS, Some(imported)) = (status, handle.read())
        // The driver may have returned a handle that gpulimit already knows.
        && !call.process.vmm.retained(imported, put_into_book(call))
    {
        possible.stay();
        call.process.vmm.imported(imported, location(imported));
    }
    status
}

/// `cuMulticastCreate`: Charges nothing, because the object takes no memory of a GPU.
pub fn create_multicast(call: Call, real: &dyn Real, handle: Out<AllocationHandle>) -> Status {
    let possible = call.process.expect_obstacle(Obstacle::Multicast);
    let status = real.call();
    if let (SUCCESS, Some(created)) = (status, handle.read()) {
        possible.stay();
        call.process.vmm.multicast(created);
    }
    status
}

/// Returns the GPU on which the allocation behind `handle` lies.
fn location(handle: AllocationHandle) -> Option<Ordinal> {
    // `CUmemAllocationProp` is twice as large as `AllocationProp`.
    let mut prop = [AllocationProp::default(); 2];
    let asked =
        relaxed(|| cuda::cuMemGetAllocationPropertiesFromHandle(Out::of_all(&mut prop), handle));
    (asked == SUCCESS).then(|| prop[0].location.device())?
}

/// Returns a function that removes memory from this process's record, for use before a driver call
/// that can free the memory.
fn take_from_book(call: Call) -> impl Fn(Ordinal, u64) {
    move |ordinal, bytes| {
        if let Ok(device) = call.process.device(ordinal) {
            device.book.remove(Category::Vmm, bytes);
        }
    }
}

/// Returns a function that puts memory back into this process's record, for memory that was not
/// freed.
fn put_into_book(call: Call) -> impl Fn(Ordinal, u64) {
    move |ordinal, bytes| {
        if let Ok(device) = call.process.device(ordinal) {
            device.book.add(Category::Vmm, bytes);
        }
    }
}

/// Runs `real`, which can end allocations. Before the call, `announce` removes them from the
/// process's record.
fn end(call: Call, announce: impl Fn() -> Announced, real: &dyn Real) -> Status {
    let mark = call.process.mark();
    let announced = announce();
    // The bytes that NVML attributes to no process. If they grow during the call, other processes
    // still hold the memory.
    let left = announced
        .leaving
        .and_then(|at| call.process.device(at).ok());
    let before = left.and_then(Device::hidden);
    let status = real.call();
    if status != SUCCESS {
        call.process.vmm.undone(announced, put_into_book(call));
        return status;
    }
    for gone in call.process.vmm.done(announced) {
        if let Some(obstacle) = gone.obstacle {
            call.process.end_obstacle(obstacle, 1);
        }
        let exports = gone.exports.into();
        call.process.end_obstacle(Obstacle::ExportedMemory, exports);
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

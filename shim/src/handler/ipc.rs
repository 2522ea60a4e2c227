//! Linear memory that processes share (CUDA IPC). The allocating process is charged until it frees
//! the memory, then the process that has the memory open.

use gpulimit_base::obstacle::Obstacle;
use gpulimit_ledger::Category;

use crate::abi::{
    Device as Ordinal, DevicePtr, Out, POINTER_ATTRIBUTE_DEVICE_ORDINAL, SUCCESS, Status,
};
use crate::account::BLOCK;
use crate::account::contexts::current_context;
use crate::account::openings::Opening;
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::{answer, cuda};
use crate::handler::Call;
use crate::handler::aside::Aside;
use crate::handler::external::lasting;
use crate::handler::linear::blocks_touched;

/// `cuIpcGetMemHandle`: Charges nothing. Marks the memory as shared, because another process may
/// keep it open longer.
pub fn get(call: Call, real: &dyn Real, dptr: DevicePtr) -> Status {
    let blocks = &call.process.blocks;
    let share = |base| {
        let export = blocks.exported(base);
        if let Some(export) = export
            && export.first
            && let Ok(device) = call.process.device(export.device)
        {
            device.book.group.mark_shared(export.bytes as i64);
        }
        export.is_some()
    };
    let possible = call.process.expect_obstacle(Obstacle::SharedMemory);
    // Another thread can free the memory as soon as the IPC handle exists, so mark the memory as
    // shared first.
    let base = blocks.base(dptr);
    let known = base.filter(|base| share(*base));
    let status = real.call();
    match known {
        // If the memory was freed meanwhile, its obstacle has ended already.
        Some(base) if status == SUCCESS || !blocks.unexported(base) => possible.stay(),
        None if status == SUCCESS => {
            // Memory that gpulimit does not know stays an obstacle.
            possible.stay();
            // The address may lie inside an allocation. The driver tells the allocation's start
            // once it has accepted the address.
            if base.is_none()
                && let Some((start, _)) = allocation_range(dptr)
            {
                share(start);
            }
        }
        _ => {}
    }
    status
}

/// `cuIpcOpenMemHandle`, `cuIpcOpenMemHandle_v2`: Charges nothing, because the allocating process
/// pays. The opening process pays once NVML attributes the memory to it. It must not be suspended
/// any more if the memory lies on another device than the current one.
pub fn open(call: Call, real: &dyn Real, dptr: Out<DevicePtr>) -> Status {
    if let Err(refused) = call.process.may_import(call.symbol) {
        return Aside::from(refused).answer(real);
    }
    let possible = call.process.expect_obstacle(Obstacle::OpenedMemory);
    let status = real.call();
    if status == SUCCESS {
        possible.stay();
        // The driver enables the access between the two devices.
        if dptr
            .read()
            .is_some_and(|address| is_of_other(call, address))
        {
            call.process.expect_obstacle(Obstacle::PeerAccess).stay();
        }
    }
    let openings = &call.process.openings;
    if let (SUCCESS, Some(address)) = (status, dptr.read())
        && !openings.again(address)
        && let Some(opening) = find_opening(address)
        && let Ok(device) = call.process.device(opening.device)
        && openings.enter(address, opening)
    {
        device.opened();
    }
    status
}

/// `cuIpcCloseMemHandle`: The last close uncharges memory that was charged to this process, unless
/// other processes may still have it open.
pub fn close(call: Call, real: &dyn Real, dptr: DevicePtr) -> Status {
    let mark = call.process.mark();
    let openings = &call.process.openings;
    let closed = openings.close(dptr);
    let Some((opening, device)) =
        closed.and_then(|opening| Some((opening, call.process.device(opening.device).ok()?)))
    else {
        let status = real.call();
        match status {
            SUCCESS => call.process.end_obstacle(Obstacle::OpenedMemory, 1),
            _ => drop(openings.again(dptr)),
        }
        return status;
    };
    device.book.remove(Category::Linear, opening.bytes);
    let before = device.hidden();
    let status = real.call();
    if status == SUCCESS {
        call.process.end_obstacle(Obstacle::OpenedMemory, 1);
        device.closed();
        device.part_with(opening.bytes, opening.size, before);
    } else {
        device.book.add(Category::Linear, opening.bytes);
        if !openings.enter(dptr, opening) {
            device.closed();
        }
    }
    device.renew(mark);
    status
}

/// `cuIpcOpenEventHandle`: Charges nothing. The process must not be suspended any more, because
/// the hooks do not follow events to their end.
pub fn open_event(call: Call, real: &dyn Real) -> Status {
    lasting(call, Obstacle::OpenedEvent, real)
}

/// Returns the start and size of the allocation that contains `address`.
fn allocation_range(address: DevicePtr) -> Option<(DevicePtr, u64)> {
    let (mut base, mut bytes) = (0, 0);
    let asked =
        relaxed(|| cuda::cuMemGetAddressRange_v2(Out::of(&mut base), Out::of(&mut bytes), address));
    (asked == SUCCESS).then_some((base, bytes as u64))
}

/// Returns whether memory at `address` may lie on another device than the current one.
fn is_of_other(call: Call, address: DevicePtr) -> bool {
    let current = || relaxed(|| answer(cuda::cuCtxGetDevice)).ok();
    call.process.device_count() > 1
        && device_of(address)
            .zip(current())
            .is_none_or(|(home, current)| home != current)
}

/// Asks the driver on which device memory lies.
fn device_of(address: DevicePtr) -> Option<Ordinal> {
    let mut device = 0;
    let attribute = POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    let asked = relaxed(|| cuda::cuPointerGetAttribute(Out::of(&mut device), attribute, address));
    (asked == SUCCESS).then_some(device)
}

/// Asks the driver for the device and size of another process's memory that was just opened at
/// `address`.
fn find_opening(address: DevicePtr) -> Option<Opening> {
    let (base, bytes) = allocation_range(address)?;
    device_of(address).map(|device| Opening {
        device,
        context: current_context(),
        size: blocks_touched(base, bytes) * BLOCK,
        bytes: 0,
        count: 1,
    })
}

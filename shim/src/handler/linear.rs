//! `cuMemAlloc` and related functions: charged in blocks of 2 MiB.

mod block;

use gpulimit_base::obstacle::Obstacle;
use gpulimit_group::Undisturbed;
use gpulimit_ledger::Category;

use crate::abi::{
    CUDA_ERROR_OUT_OF_MEMORY, Context, Device as Ordinal, DevicePtr, DevicePtrV1, Out, SUCCESS,
    Status,
};
use crate::account::blocks::{Departure, Large, Taken};
use crate::account::charged::Charged;
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::spare::Spare;
use crate::account::{BLOCK, Process, round_up};
use crate::driver::Real;
use crate::driver::cuda;
use crate::driver::gate::AtOnce;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{Aside, size_on};
use crate::handler::managed;
use crate::refusal::Refused;
use block::Block;

/// A call that was made before the hook: of `cuMemAlloc_v2` on a spare block, or of `cuMemFree_v2`.
#[derive(Clone, Copy)]
pub struct Made {
    spare: Option<(&'static Device, &'static Spare)>,
    /// The number of measurements that the process had made when the call began
    /// (`Process::mark`).
    mark: u64,
    /// The driver's answer.
    pub status: Status,
}

/// `cuMemAlloc_v2` of up to 2 MiB, for which the thread has a spare block. Returns the status if
/// the driver took no new block. Otherwise returns the call that was made, or `None` if nothing was
/// done.
#[inline(always)]
pub fn alloc_at_once<C: FnOnce() -> Status>(
    begin: impl FnOnce() -> Option<(AtOnce, C)>,
    dptr: Out<DevicePtr>,
    bytesize: usize,
) -> Result<Status, Option<Made>> {
    if !(1..=BLOCK).contains(&(bytesize as u64)) {
        return Err(None);
    }
    let process = Process::existing().ok_or(None)?;
    // The stream 0 is of the current context.
    let device = process.stream_device_at_once(0).ok_or(None)?;
    let (begun, real) = begin().ok_or(None)?;
    let spare = device.spares.own();
    if process.is_asked() || !spare.take() {
        return Err(None);
    }
    let mark = process.mark();
    let status = begun.run(real);
    if status == SUCCESS
        && let Some(address) = dptr.read()
        && process.blocks.enter_at_once(address)
    {
        spare.put_back();
        return Ok(status);
    }
    Err(Some(Made {
        spare: Some((device, spare)),
        mark,
        status,
    }))
}

/// `cuMemAlloc_v2`: Charges whole blocks of 2 MiB before the call. Uncharges a small request that
/// fits into a charged block.
pub fn alloc(
    call: Call,
    real: impl Fn(Out<DevicePtr>, usize) -> Status,
    made: Option<Made>,
    dptr: Out<DevicePtr>,
    bytesize: usize,
) -> Status {
    let (real, result) = (|| real(dptr, bytesize), || (dptr.read(), None));
    let estimate = bytesize as u64;
    if let Some((device, spare)) = made.and_then(|made| made.spare) {
        let paid = Block::of(device, spare);
        return small(call, device, estimate, paid, made, &real, &result);
    }
    allocate(call, estimate, real, result)
}

/// `cuMemAlloc`: Charged like `cuMemAlloc_v2`; the sizes have 32 bits.
pub fn alloc_v1(call: Call, real: &dyn Real, dptr: Out<DevicePtrV1>, bytesize: u32) -> Status {
    allocate_by(call, bytesize.into(), real, &|| {
        (dptr.read().map(DevicePtr::from), None)
    })
}

/// `cuMemAllocPitch_v2`: Charges whole blocks before the call, by an estimated pitch. Corrects the
/// charge after the call.
pub fn alloc_pitch(
    call: Call,
    real: &dyn Real,
    dptr: Out<DevicePtr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
) -> Status {
    allocate_rows(call, width as u64, height as u64, real, &|| {
        (dptr.read(), pitch.read().map(|pitch| pitch as u64))
    })
}

/// `cuMemAllocPitch`: Charged like `cuMemAllocPitch_v2`; the sizes have 32 bits.
pub fn alloc_pitch_v1(
    call: Call,
    real: &dyn Real,
    dptr: Out<DevicePtrV1>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
) -> Status {
    allocate_rows(call, width.into(), height.into(), real, &|| {
        let address = dptr.read().map(DevicePtr::from);
        (address, pitch.read().map(u64::from))
    })
}

/// A function that returns the address of the new allocation, and its size where the driver decides
/// the size.
type Got<'a> = &'a dyn Fn() -> (Option<DevicePtr>, Option<u64>);

/// Makes a pitched allocation of pitch × height bytes. `result` returns the address and the pitch
/// after the driver's call.
fn allocate_rows(call: Call, width: u64, height: u64, real: &dyn Real, result: Got<'_>) -> Status {
    /// The driver pads rows to a multiple of this many bytes. The charge for more padding is
    /// corrected after the call.
    const PITCH: u64 = 512;
    let estimate = round_up(width, PITCH).saturating_mul(height);
    allocate_by(call, estimate, real, &|| {
        let (address, pitch) = result();
        (address, pitch.map(|pitch| pitch.saturating_mul(height)))
    })
}

/// Does the work of [`allocate`]; compiled once for all the functions that programs call seldom.
fn allocate_by(call: Call, estimate: u64, real: &dyn Real, result: Got<'_>) -> Status {
    allocate(call, estimate, || real.call(), result)
}

/// Charges `estimate` bytes, calls the driver and records the allocation. `result` returns the
/// address and a size from the driver.
#[inline]
fn allocate(
    call: Call,
    estimate: u64,
    real: impl Fn() -> Status,
    result: impl Fn() -> (Option<DevicePtr>, Option<u64>),
) -> Status {
    let device = match device_for(call, estimate) {
        Ok(device) => device,
        Err(aside) => return answer(call, estimate, aside, &real),
    };
    if estimate > BLOCK {
        return large(call, device, estimate, real, result);
    }
    match Block::pay(device, call.symbol) {
        Ok(paid) => small(call, device, estimate, paid, None, &real, &result),
        Err(Aside::Refused) => CUDA_ERROR_OUT_OF_MEMORY,
        Err(_) => real(),
    }
}

/// Returns the driver's answer to a request that it gets as it is. More bytes than the GPU has are
/// a refusal.
#[cold]
fn answer(call: Call, bytes: u64, aside: Aside, real: &dyn Real) -> Status {
    let status = aside.answer(real);
    let device = call.process.current_device();
    device.map_or(status, |it| it.note_answer(call.symbol, bytes, status))
}

#[inline(always)]
fn device_for(call: Call, bytes: u64) -> Result<&'static Device, Aside> {
    let device = call.process.current_device()?;
    size_on(device, bytes)?;
    Ok(device)
}

/// Makes an allocation of at most 2 MiB, or ends the one that was `made`. Its address tells whether
/// the driver took a new block.
fn small(
    call: Call,
    device: &'static Device,
    estimate: u64,
    mut paid: Block<'static>,
    mut made: Option<Made>,
    real: &dyn Real,
    result: Got<'_>,
) -> Status {
    // At most two tries: a lent block can lead to a second try, which has a charged block.
    let mut tries = 0;
    loop {
        fault::point("small");
        let make = || (call.process.mark(), real.call());
        let (mark, status) = (made.take()).map_or_else(make, |made| (made.mark, made.status));
        let (SUCCESS, (Some(address), size)) = (status, result()) else {
            paid.give_back();
            return device.note_answer(call.symbol, estimate, status);
        };
        let size = size.unwrap_or(estimate);
        if blocks_touched(address, size) > 1 {
            // The driver chose a pitch with which the allocation is too large for one block.
            paid.spend();
            let charged = Charged::new(device, BLOCK, false);
            enter_large(charged, device, current_context(), address, size);
            device.renew(mark);
            return status;
        }
        let blocks = &call.process.blocks;
        if !blocks.enter_small(address, device.ordinal, current_context) {
            paid.give_back();
            return status;
        }
        if !paid.is_lent() {
            paid.spend();
            device.book.add(Category::Linear, BLOCK);
            device.renew(mark);
            let Some(left) = device.below() else {
                return status;
            };
            give_back(call, address);
            let again = device.again(call.symbol, estimate, left, &mut tries);
            paid = match again.and_then(|()| Block::charge(device, call.symbol)) {
                Ok(paid) => paid,
                Err(Refused) => return CUDA_ERROR_OUT_OF_MEMORY,
            };
            continue;
        }
        paid = match undo_unpaid(call, device, paid, address, mark) {
            Ok(paid) => paid,
            Err(Refused) => return CUDA_ERROR_OUT_OF_MEMORY,
        };
    }
}

/// Frees a small allocation whose new block was only lent. Returns a charged block for another try.
#[cold]
fn undo_unpaid(
    call: Call,
    device: &'static Device,
    paid: Block<'_>,
    address: DevicePtr,
    mark: u64,
) -> Result<Block<'static>, Refused> {
    let lent = paid.lent();
    cuda::cuMemFree_v2(address);
    if matches!(call.process.blocks.leave_small(address), Departure::Held) {
        // Another thread has used the block without paying for it. So the block and its lent bytes
        // stay charged.
        lent.hand_over();
        device.book.add(Category::Linear, BLOCK);
    } else {
        drop(lent);
    }
    // Another thread may have counted this block as the driver's own memory, so measure again.
    device.renew(mark);
    Block::charge(device, call.symbol)
}

fn large(
    call: Call,
    device: &'static Device,
    estimate: u64,
    real: impl Fn() -> Status,
    result: impl Fn() -> (Option<DevicePtr>, Option<u64>),
) -> Status {
    let context = current_context();
    if context == 0 {
        return real();
    }
    let make = |charged: Charged<'_>| {
        fault::point("large");
        let status = real();
        match (status, result()) {
            (SUCCESS, (Some(address), size)) => {
                enter_large(charged, device, context, address, size.unwrap_or(estimate))
            }
            _ => drop(charged),
        }
        status
    };
    let undo = || give_back(call, result().0.unwrap_or(0));
    let made = device.take(call.symbol, estimate, make, undo);
    made.unwrap_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Frees an allocation that this call has made, and that left less than `keep_free`.
fn give_back(call: Call, address: DevicePtr) {
    release(call, address, || cuda::cuMemFree_v2(address));
}

/// Returns the number of blocks of 2 MiB that `size` bytes at `address` touch.
pub fn blocks_touched(address: DevicePtr, size: u64) -> u64 {
    address.saturating_add(size.saturating_sub(1)) / BLOCK - address / BLOCK + 1
}

/// Records an allocation of `size` bytes in `context` that has blocks of its own. `charged` is the
/// charge for it.
fn enter_large(
    charged: Charged<'_>,
    device: &'static Device,
    context: Context,
    address: DevicePtr,
    size: u64,
) {
    let bytes = blocks_touched(address, size) * BLOCK;
    charged.spend_as(bytes);
    device.book.add(Category::Linear, bytes);
    device.process().blocks.enter_large(
        address,
        Large {
            device: device.ordinal,
            context,
            blocks: bytes / BLOCK,
            exports: 0,
        },
    );
}

/// `cuMemFree_v2` of a small allocation. Returns the status if others are left in the block.
/// Otherwise returns the call that was made, or `None` if nothing was done.
#[inline(always)]
pub fn free_at_once<C: FnOnce() -> Status>(
    begin: impl FnOnce() -> Option<(AtOnce, C)>,
    dptr: DevicePtr,
) -> Result<Status, Option<Made>> {
    let process = Process::existing().ok_or(None)?;
    // A large allocation may begin at the start of a block.
    if dptr.is_multiple_of(BLOCK) || !process.blocks.is_counted(dptr) || process.is_asked() {
        return Err(None);
    }
    let (begun, real) = begin().ok_or(None)?;
    let mark = process.mark();
    let status = begun.run(real);
    if status == SUCCESS && process.blocks.leave_at_once(dptr) {
        return Ok(status);
    }
    Err(Some(Made {
        spare: None,
        mark,
        status,
    }))
}

/// `cuMemFree_v2`: Uncharges after the call. The last small allocation in a block uncharges the
/// block. Memory open in other processes stays charged.
pub fn free(
    call: Call,
    real: impl Fn(DevicePtr) -> Status,
    made: Option<Made>,
    dptr: DevicePtr,
) -> Status {
    if let Some(made) = made {
        leave_small(call, dptr, made.mark, made.status);
        return made.status;
    }
    release(call, dptr, || real(dptr))
}

/// `cuMemFree`: Uncharged like `cuMemFree_v2`; the address has 32 bits.
pub fn free_v1(call: Call, real: &dyn Real, dptr: DevicePtrV1) -> Status {
    release(call, dptr.into(), || real.call())
}

#[inline]
fn release(call: Call, dptr: DevicePtr, real: impl Fn() -> Status) -> Status {
    let mark = call.process.mark();
    let blocks = &call.process.blocks;
    if dptr.is_multiple_of(BLOCK)
        && let Some(taken) = blocks.take_large(dptr)
        && let Ok(device) = call.process.device(taken.device)
    {
        // Otherwise a cancelled thread would end in the driver's call, if its context sleeps.
        let _undisturbed = Undisturbed::new();
        device.book.remove(Category::Linear, taken.bytes());
        let shared = taken.exports > 0;
        let before = shared.then(|| device.hidden()).flatten();
        let status = real();
        if status == SUCCESS && shared {
            call.process
                .end_obstacle(Obstacle::SharedMemory, taken.exports.into());
            device.part_with(taken.bytes(), taken.bytes(), before);
        } else if status == SUCCESS {
            device.book.uncharge(taken.bytes());
        } else {
            blocks.enter_large(dptr, taken);
            device.book.add(Category::Linear, taken.bytes());
        }
        device.renew(mark);
        return status;
    }
    if let Some(taken) = blocks.take_shared(dptr)
        && let Ok(device) = call.process.device(taken.device)
    {
        let status = free_shared(device, taken, dptr, &real);
        device.renew(mark);
        return status;
    }
    let process = call.process;
    if !process.managed.is_empty() || !process.pools.lent.is_empty() {
        return release_managed_or_lent(call, dptr, mark, &real);
    }
    let status = real();
    leave_small(call, dptr, mark, status);
    status
}

/// Does the work of [`release`] where the process has managed memory or managed pools, to which
/// `dptr` may belong.
#[cold]
fn release_managed_or_lent(call: Call, dptr: DevicePtr, mark: u64, real: &dyn Real) -> Status {
    let _undisturbed = Undisturbed::new();
    if let Some(status) = managed::free(call, dptr, real) {
        return status;
    }
    let lent = call.process.pools.lent.take(dptr);
    let status = real.call();
    if let Some(pool) = lent.filter(|_| status != SUCCESS) {
        call.process.pools.lent.insert(dptr, pool);
    }
    leave_small(call, dptr, mark, status);
    status
}

/// Forgets the small allocation at `dptr` if the driver has freed it: if `status` is a success.
#[inline(always)]
fn leave_small(call: Call, dptr: DevicePtr, mark: u64, status: Status) {
    if status == SUCCESS && dptr != 0 {
        match call.process.blocks.leave_small(dptr) {
            Departure::Held => {}
            Departure::Emptied(device) => empty_block(call, device, mark),
            // The address may belong to a memory pool. The driver's figure for the pool's usage
            // then shows what was freed.
            Departure::Unknown => {
                call.process.refresh_pools();
                // The memory pool can shrink at the next synchronise call, which must then ask for
                // its size.
                call.process.pools.touch();
            }
        }
    }
}

/// `cuMemFreeAsync` of an address that may be of `cuMemAlloc`: the driver keeps such memory until a
/// synchronise call (measured).
#[cold]
#[inline(never)]
pub fn free_later(call: Call, dptr: DevicePtr, real: &dyn Real) -> Status {
    let blocks = &call.process.blocks;
    if dptr.is_multiple_of(BLOCK)
        && let Some(taken) = blocks.take_large(dptr)
        && let Ok(device) = call.process.device(taken.device)
    {
        device.book.remove(Category::Linear, taken.bytes());
        let before = (taken.exports > 0).then(|| device.hidden()).flatten();
        let status = real.call();
        if status == SUCCESS {
            let_go(device, taken.bytes(), taken.exports, before);
        } else {
            blocks.enter_large(dptr, taken);
            device.book.add(Category::Linear, taken.bytes());
        }
        return status;
    }
    let status = real.call();
    if status == SUCCESS {
        leave_small_later(call, dptr);
    }
    status
}

/// Forgets a small allocation of `cuMemAlloc` that `cuMemFreeAsync` has freed.
fn leave_small_later(call: Call, dptr: DevicePtr) {
    let blocks = &call.process.blocks;
    let (device, exports) = match blocks.take_shared(dptr) {
        Some(taken) if taken.last => (taken.device, taken.exports),
        Some(_) => return,
        None => match blocks.leave_small(dptr) {
            Departure::Emptied(device) => (device, 0),
            Departure::Held | Departure::Unknown => return,
        },
    };
    if let Ok(device) = call.process.device(device) {
        device.book.remove(Category::Linear, BLOCK);
        let_go(device, BLOCK, exports, None);
    }
}

fn let_go(device: &'static Device, bytes: u64, exports: u32, before: Option<u64>) {
    match exports {
        0 => device.let_go(bytes),
        _ => {
            let shared = Obstacle::SharedMemory;
            device.process().end_obstacle(shared, exports.into());
            device.part_with(bytes, bytes, before);
            device.let_go(0);
        }
    }
}

/// Keeps a block without allocations as a spare block, or uncharges it.
#[inline(never)]
fn empty_block(call: Call, device: Ordinal, mark: u64) {
    if let Ok(device) = call.process.device(device) {
        device.book.remove(Category::Linear, BLOCK);
        device.keep_block();
        device.renew(mark);
    }
}

/// Frees a small allocation in a block that other processes may have open.
#[cold]
fn free_shared(device: &'static Device, taken: Taken, dptr: DevicePtr, real: &dyn Real) -> Status {
    let _undisturbed = Undisturbed::new();
    let mut before = None;
    if taken.last {
        device.book.remove(Category::Linear, BLOCK);
        before = device.hidden();
    }
    let status = real.call();
    if status == SUCCESS {
        if taken.last {
            let exports = taken.exports.into();
            device
                .process()
                .end_obstacle(Obstacle::SharedMemory, exports);
            device.part_with(BLOCK, BLOCK, before);
        }
        return status;
    }
    let (new, more) = device.process().blocks.put_back(dptr, taken);
    if more > 0 {
        let process = device.process();
        process.expect_obstacle(Obstacle::SharedMemory).stay();
    }
    match (new, taken.last) {
        (true, true) => device.book.add(Category::Linear, BLOCK),
        // While the driver's call failed, other threads have freed this block, or have made new
        // allocations in it.
        (true, false) => {
            device.book.group.charge_unchecked(BLOCK);
            device.book.group.mark_shared(BLOCK as i64);
            device.book.add(Category::Linear, BLOCK);
        }
        (false, true) => device.part_with(BLOCK, BLOCK, before),
        (false, false) => {}
    }
    status
}

//! Stream-ordered allocation and memory pools.

use std::time::Instant;

use crate::abi::{
    ALLOCATION_PINNED, AllocationProp, CUDA_ERROR_OUT_OF_MEMORY, Device as Ordinal, DevicePtr, In,
    Location, MemPool, Opaque, Out, SUCCESS, Status, Stream,
};
use crate::account::device::Device;
use crate::account::pools::{PATIENCE, Pool, STEP, growth};
use crate::capture::relaxed;
use crate::handler::stream::{await_work, capturing, own_stream};
use crate::hook::Call;
use crate::refusal::Refused;
use crate::table::cuda;

/// `cuMemAllocAsync` and its per-thread-stream twin: from the current pool of the stream's device. The most by which the pool may grow, in
/// steps of 32 MiB, is charged before the call, and what it did not grow by given back.
pub fn alloc(
    call: Call,
    real: impl Fn(Out<DevicePtr>, usize, Stream) -> Status,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    stream: Stream,
) -> Status {
    let source = call
        .process
        .stream_device(stream)
        .and_then(|device| Ok((device, device.current_pool()?)));
    match source {
        Ok((device, pool)) => allocate(call, device, pool, bytesize, dptr, stream, || {
            real(dptr, bytesize, stream)
        }),
        Err(failed) => call
            .process
            .unavailable(failed, &|| real(dptr, bytesize, stream)),
    }
}

/// `cuMemAllocFromPoolAsync` and its twin: charged as by `cuMemAllocAsync`; the pool's device counts, not the stream's.
pub fn alloc_from(
    call: Call,
    real: impl Fn(Out<DevicePtr>, usize, MemPool, Stream) -> Status,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    pool: MemPool,
    stream: Stream,
) -> Status {
    let pool_of = call
        .process
        .pools
        .known_or(pool, || whose(call, pool, stream));
    match call.process.device(pool_of.device) {
        Ok(device) => allocate(call, device, pool_of, bytesize, dptr, stream, || {
            real(dptr, bytesize, pool, stream)
        }),
        Err(failed) => call
            .process
            .unavailable(failed, &|| real(dptr, bytesize, pool, stream)),
    }
}

/// Device of a pool that we did not see being made: some device's default or current pool, or an imported one (which cannot allocate).
fn whose(call: Call, pool: MemPool, stream: Stream) -> (Ordinal, bool) {
    let is = |found: MemPool| found == pool;
    for ordinal in 0..call.process.device_count() {
        let mut handle = 0;
        if (cuda::cuDeviceGetDefaultMemPool(Out::of(&mut handle), ordinal) == SUCCESS && is(handle))
            || (cuda::cuDeviceGetMemPool(Out::of(&mut handle), ordinal) == SUCCESS && is(handle))
        {
            return (ordinal, true);
        }
    }
    (
        call.process
            .stream_device(stream)
            .map_or(0, |device| device.ordinal),
        true,
    )
}

fn allocate(
    call: Call,
    device: &'static Device,
    pool: &'static Pool,
    bytesize: usize,
    dptr: Out<DevicePtr>,
    stream: Stream,
    real: impl Fn() -> Status,
) -> Status {
    if !pool.counted || !device.may_hold(bytesize as u64) {
        return real();
    }
    let growth = growth(bytesize as u64);
    let mark = call.process.mark();
    let mut paid = pool.prepay(device, growth);
    let mut tries = 0;
    loop {
        if !paid {
            match pay(call, device, pool, bytesize as u64, stream) {
                Ok(Payment::Done) => {}
                Ok(Payment::Node) => return real(),
                Err(Refused) => return CUDA_ERROR_OUT_OF_MEMORY,
            }
        }
        let status = real();
        let taken = dptr.read().filter(|_| status == SUCCESS);
        let range = taken.map(|start| start..start.saturating_add(bytesize as u64));
        let whole = pool.settle(device, growth, range);
        call.process.pools.touch();
        if whole {
            return status;
        }
        let undo = || take_back(call.symbol, device, pool, growth, dptr, stream);
        if grown(device, pool, mark, status, undo) {
            return status;
        }
        tries += 1;
        if tries == TRIES {
            device.refuse(call.symbol, bytesize as u64);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        // Room for the growth, and for the headroom that it would take.
        if tries > 1
            && device
                .await_room(call.symbol, growth + STEP, bytesize as u64)
                .is_err()
        {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        // What the driver handed back meanwhile may do.
        paid = false;
    }
}

/// Times that an allocation is made and undone because others were faster to take the room for its headroom.
const TRIES: u32 = 16;

/// How a request's possible growth is paid.
enum Payment {
    /// Charged, out of the headroom or anew.
    Done,
    /// Not at all: the request becomes a graph node, not memory.
    Node,
}

/// The headroom does not cover the request's possible growth.
#[cold]
fn pay(
    call: Call,
    device: &'static Device,
    pool: &'static Pool,
    asked: u64,
    stream: Stream,
) -> Result<Payment, Refused> {
    let growth = growth(asked);
    let until = Instant::now() + PATIENCE;
    let paid = |until| {
        pool.pay(device, growth, until, |rest| {
            device.charge_ahead_without_trim(rest)
        })
        .is_ok()
    };
    if paid(None) {
        return Ok(Payment::Done);
    }
    if capturing(call.symbol, stream) {
        return Ok(Payment::Node);
    }
    // The group is full. Other threads may have the headroom for the length of a call.
    if paid(Some(until)) {
        return Ok(Payment::Done);
    }
    // What the pool hands back makes room for its growth; twice as much, so that the next request of this size finds room at once.
    pool.trim(device, 2 * growth);
    if paid(Some(until)) {
        return Ok(Payment::Done);
    }
    // It can hand back only what no work under way uses.
    if pool.unused() >= growth {
        await_work(call.symbol, stream, until);
    }
    pool.trim(device, u64::MAX);
    pool.pay(device, growth, Some(until), |rest| {
        device.charge_ahead_of(call.symbol, rest, asked)
    })?;
    Ok(Payment::Done)
}

/// An allocation has made the pool grow. True when that can be paid, with a headroom anew, and stays; else it is undone.
#[cold]
fn grown(
    device: &'static Device,
    pool: &'static Pool,
    mark: u64,
    status: Status,
    undo: impl FnOnce(),
) -> bool {
    device.renew(mark);
    let stays = pool.restore_headroom(device) || status != SUCCESS;
    if !stays {
        undo();
    }
    pool.grown();
    stays
}

/// Undoes an allocation. While work is under way on its stream the pool keeps the memory, charged.
fn take_back(
    symbol: &str,
    device: &Device,
    pool: &Pool,
    growth: u64,
    dptr: Out<DevicePtr>,
    stream: Stream,
) {
    if let Some(address) = dptr.read() {
        relaxed(|| match own_stream(symbol) {
            true => cuda::cuMemFreeAsync_ptsz(address, stream),
            false => cuda::cuMemFreeAsync(address, stream),
        });
    }
    pool.trim(device, growth);
}

/// `cuMemFreeAsync` and its twin: the pool keeps the memory, charged, until a synchronise call at least, which then looks at the pools.
pub fn free(
    call: Call,
    real: impl Fn(DevicePtr, Stream) -> Status,
    dptr: DevicePtr,
    stream: Stream,
) -> Status {
    let status = real(dptr, stream);
    if status == SUCCESS {
        call.process.pools.touch();
    }
    status
}

/// `cuMemPoolCreate`: charges nothing; remembers whose memory the pool will take.
pub fn create(
    call: Call,
    real: impl Fn(Out<MemPool>, In<AllocationProp>) -> Status,
    pool: Out<MemPool>,
    props: In<AllocationProp>,
) -> Status {
    let status = real(pool, props);
    if let (SUCCESS, Some(handle), Some(props)) = (status, pool.read(), props.read()) {
        let device = props
            .location
            .device()
            .filter(|_| props.allocation_type == ALLOCATION_PINNED);
        call.process
            .pools
            .known_or(handle, || (device.unwrap_or(0), device.is_some()));
    }
    status
}

/// `cuMemPoolDestroy`: given back after the call; what is still in use stays charged until a measurement finds it gone.
pub fn destroy(call: Call, real: impl Fn(MemPool) -> Status, pool: MemPool) -> Status {
    let known = call.process.pools.forget(pool);
    let status = real(pool);
    match known.map(|known| (known, call.process.device(known.device))) {
        Some((known, Ok(device))) if known.counted && status == SUCCESS => {
            let before = device.driver.used();
            let held = known.close(device);
            device.driver.measure(device);
            device.uncharge_idle(held);
            let left = device.driver.used().saturating_sub(before);
            call.process.pools.orphan(left);
        }
        Some((known, _)) if status != SUCCESS => call.process.pools.restore(known),
        _ => {}
    }
    for device in call.process.devices() {
        device.forget_current_pool();
    }
    status
}

/// `cuMemPoolTrimTo`: given back after the call is what the pool no longer reserves.
pub fn trim(
    call: Call,
    real: impl Fn(MemPool, usize) -> Status,
    pool: MemPool,
    keep: usize,
) -> Status {
    let status = real(pool, keep);
    call.process.pools.refresh(call.process);
    status
}

/// `cuMemPoolSetAttribute`: charges nothing; with a lower threshold the next synchronise call lets the pool shrink.
pub fn set_attribute(
    call: Call,
    real: impl Fn(MemPool, i32, Opaque) -> Status,
    pool: MemPool,
    attribute: i32,
    value: Opaque,
) -> Status {
    let status = real(pool, attribute, value);
    call.process.pools.touch();
    status
}

/// `cuDeviceSetMemPool`: charges nothing; the next allocation asks which pool is current.
pub fn set_current(
    call: Call,
    real: impl Fn(Ordinal, MemPool) -> Status,
    device: Ordinal,
    pool: MemPool,
) -> Status {
    let status = real(device, pool);
    forget_current(call, device);
    status
}

/// `cuMemSetMemPool`: as `cuDeviceSetMemPool`.
pub fn set_current_at(
    call: Call,
    real: impl Fn(In<Location>, i32, MemPool) -> Status,
    location: In<Location>,
    kind: i32,
    pool: MemPool,
) -> Status {
    let status = real(location, kind, pool);
    if let Some(device) = location.read().and_then(Location::device) {
        forget_current(call, device);
    }
    status
}

fn forget_current(call: Call, device: Ordinal) {
    if let Ok(device) = call.process.device(device) {
        device.forget_current_pool();
    }
}

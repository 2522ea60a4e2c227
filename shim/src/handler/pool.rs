//! Stream-ordered allocation and memory pools.

use crate::abi::{
    ALLOCATION_PINNED, AllocationProp, CAPTURE_STATUS_NONE, CUDA_ERROR_OUT_OF_MEMORY,
    Device as Ordinal, DevicePtr, In, Location, MemPool, Out, SUCCESS, Status, Stream,
};
use crate::account::device::Device;
use crate::account::pools::{Pool, growth};
use crate::hook::Call;
use crate::refusal::Refused;
use crate::table::cuda;

/// `cuMemAllocAsync` and its per-thread-stream twin: from the current pool of the stream's device.
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
            .unavailable(failed, || real(dptr, bytesize, stream)),
    }
}

/// `cuMemAllocFromPoolAsync` and its twin: the pool's device counts, not the stream's.
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
            .unavailable(failed, || real(dptr, bytesize, pool, stream)),
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
    if !pool.counted || bytesize == 0 {
        return real();
    }
    let step = growth(bytesize as u64);
    if pool.prepay(step) {
        let status = real();
        pool.settle(device, step);
        call.process.pools.touch();
        return status;
    }
    grow(
        call,
        device,
        pool,
        bytesize as u64,
        step,
        dptr,
        stream,
        real,
    )
}

/// Nothing idle covers the request's possible growth: charge for it, or show that it will not grow.
#[cold]
#[allow(clippy::too_many_arguments)]
fn grow(
    call: Call,
    device: &'static Device,
    pool: &'static Pool,
    bytes: u64,
    step: u64,
    dptr: Out<DevicePtr>,
    stream: Stream,
    real: impl Fn() -> Status,
) -> Status {
    let mark = call.process.mark();
    let paid = |status: Status| {
        pool.settle(device, step);
        call.process.pools.touch();
        device.renew(mark);
        status
    };
    if pool
        .pay(step, || device.charge_ahead_without_trim(step))
        .is_ok()
    {
        return paid(real());
    }
    if capturing(call.symbol, stream) {
        // A graph node, not memory.
        return real();
    }
    // The group is full. Memory that the pool has reserved and not handed out serves the request, unless it is in pieces.
    if pool.has_room(bytes) {
        let status = real();
        let beyond = pool.settle(device, 0);
        call.process.pools.touch();
        if status != SUCCESS || beyond == 0 {
            return status;
        }
        // In pieces: the pool grew over the limit. Undo, and let the driver hand the pieces back.
        pool.is_in_pieces();
        if let Some(address) = dptr.read() {
            cuda::cuMemFreeAsync(address, stream);
            cuda::cuStreamSynchronize(stream);
        }
    }
    // What the pool hands back makes room for its growth.
    pool.trim(device, step);
    match pool.pay(step, || device.charge_ahead(call.symbol, step)) {
        Ok(()) => paid(real()),
        Err(Refused) => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// Whether `stream` is being captured into a graph.
fn capturing(symbol: &str, stream: Stream) -> bool {
    let mut state = CAPTURE_STATUS_NONE;
    let asked = if symbol.ends_with("_ptsz") {
        cuda::cuStreamIsCapturing_ptsz(stream, Out::of(&mut state))
    } else {
        cuda::cuStreamIsCapturing(stream, Out::of(&mut state))
    };
    asked == SUCCESS && state != CAPTURE_STATUS_NONE
}

/// `cuMemFreeAsync` and its twin: the pool keeps the memory until a synchronise call, at least.
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

/// `cuMemPoolCreate`.
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

/// `cuMemPoolDestroy`: returns at once; what is still in use goes back when it is freed.
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

/// `cuMemPoolTrimTo`.
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

/// `cuDeviceSetMemPool`.
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

/// `cuMemSetMemPool`.
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

//! Contexts: hundreds of MiB each, of a size that no call tells.
//!
//! The first process of a group measures what a context takes on this GPU and leaves the figure in the ledger; from then on every context is
//! charged by it before it is made.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpulimit_core::ledger::Category;

use crate::abi::{
    CUDA_ERROR_OUT_OF_MEMORY, Context, Device as Ordinal, Opaque, Out, SUCCESS, Status,
};
use crate::account::device::{self, Device};
use crate::account::vmm::Gone;
use crate::account::{BLOCK, round_up};
use crate::handler::array;
use crate::hook::{Call, Real};
use crate::table::cuda;

/// Held ready for a first context of unknown size: more than any measured, bytes.
const UNKNOWN: u64 = 1 << 30;
/// Charged for a context where nothing can be measured (no NVML), bytes.
const UNMEASURED: u64 = 512 << 20;
/// How long to wait for another member that is measuring the first context.
const PATIENCE: Duration = Duration::from_secs(3);

/// Which context a call makes.
#[derive(Clone, Copy)]
enum Kind {
    /// The device's own, once for all who retain it.
    Primary,
    /// A further one.
    Further,
}

fn make(
    call: Call,
    kind: Kind,
    ordinal: Ordinal,
    real: &dyn Real,
    made: Out<Context>,
    undo: &dyn Fn(Context),
) -> Status {
    let device = match call.process.device(ordinal) {
        Ok(device) => device,
        Err(failed) => return call.process.unavailable(failed, real),
    };
    // One at a time: two threads that retain the same primary context make one.
    let _alone = device.making.lock();
    if matches!(kind, Kind::Primary) && is_there(device, ordinal) {
        return real.call();
    }
    let hint = hint(device);
    let estimate = if device.counts_contexts() {
        estimate(device, hint)
    } else {
        0
    };
    if device.driver.prepay(device, call.symbol, estimate).is_err() {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    let before = device.driver.used();
    let status = real.call();
    let context = made.read().filter(|_| status == SUCCESS);
    if let Some(context) = context {
        device.contexts.insert(context);
        call.process.launched.forget_kernels();
    }
    if context.is_some() && hint > 0 {
        // Known: measuring it would only cost this process the start of NVML, 12 ms. The next call that is measured corrects it.
        device.driver.settle_assumed(device, estimate, hint);
        return status;
    }
    let Some(measured) = device.driver.settle(device, estimate) else {
        // Nothing to measure with.
        if context.is_some() {
            device.driver.settle_assumed(device, 0, UNMEASURED);
        }
        return status;
    };
    let Some(context) = context else {
        return status;
    };
    let grown = measured.used.saturating_sub(before);
    if grown > 0 {
        device.set_context_hint(grown);
    }
    if measured.overrun > 0 {
        undo(context);
        device.contexts.remove(context);
        device.driver.measure(device);
        device.refuse(call.symbol, grown);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    status
}

/// Whether the primary context is there already.
fn is_there(device: &Device, ordinal: Ordinal) -> bool {
    device.primary.load(Ordering::Acquire) != 0 && active(ordinal)
}

/// Bytes that a context takes here; 0 when nobody has measured it yet and nobody is about to.
fn hint(device: &Device) -> u64 {
    let started = Instant::now();
    loop {
        let hint = device.context_hint();
        // With room for anything, or alone in the group, there is no need to know. Else somebody is about to find out.
        if hint > 0
            || device.group_free() >= UNKNOWN
            || !device.shared()
            || started.elapsed() > PATIENCE
        {
            return hint;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes to charge before a context is made.
fn estimate(device: &Device, hint: u64) -> u64 {
    if hint > 0 {
        return round_up(hint, BLOCK);
    }
    (UNKNOWN.min(device.group_free()) / BLOCK * BLOCK)
        .max(device.least_context)
        .max(BLOCK)
}

fn active(ordinal: Ordinal) -> bool {
    let (mut flags, mut active) = (0, 0);
    cuda::cuDevicePrimaryCtxGetState(ordinal, Out::of(&mut flags), Out::of(&mut active)) == SUCCESS
        && active != 0
}

/// Nothing is left of what was in `context`, one of the device's, but what other processes may have, too: that is returned.
fn empty(call: Call, device: &Device, context: Context) -> Vec<Gone> {
    let freed = |ordinal: Ordinal, category: Category, bytes: u64| {
        if let Ok(device) = call.process.device(ordinal) {
            device.remove(category, bytes);
            device.uncharge(bytes);
        }
    };
    let mut shared = Vec::new();
    let mut part = |device, bytes, size| {
        shared.push(Gone {
            device,
            bytes,
            size,
            shared: true,
        });
        if let Ok(device) = call.process.device(device) {
            device.remove(Category::Linear, bytes);
        }
    };
    call.process
        .blocks
        .drain(context, |ordinal, blocks, shared| {
            let bytes = blocks * BLOCK;
            match shared {
                true => part(ordinal, bytes, bytes),
                false => freed(ordinal, Category::Linear, bytes),
            }
        });
    for opening in call.process.openings.drain(context) {
        part(opening.device, opening.bytes, opening.size);
        if let Ok(device) = call.process.device(opening.device) {
            device.closed();
        }
    }
    call.process.managed.drain(context, |ordinal, bytes| {
        freed(ordinal, Category::Managed, bytes)
    });
    call.process.libraries.forget_context(context);
    array::drain(call, context, freed);
    call.process.pools.refresh(call.process);
    call.process.execs.drain(context);
    if device.contexts.count() <= 1 {
        device.graphs.clear(device);
    } else {
        device.graphs.refresh(device);
    }
    shared
}

/// A context of the device is no more; what was in it other processes may have.
fn gone(call: Call, device: &'static Device, context: Context, shared: Vec<Gone>) {
    call.process.launched.forget();
    call.process.greens.forget(context);
    device
        .driver
        .unreserve(device, device.kernels.forget(context));
    device.contexts.remove(context);
    if device.contexts.count() == 0 {
        device.release_spares();
    }
    device.driver.forget_assumed(device);
    device.driver.measure(device);
    for left in shared {
        if let Ok(device) = call.process.device(left.device) {
            device.part_with(left.bytes, left.size, None);
        }
    }
}

/// `cuDevicePrimaryCtxRetain`: the first one is charged before the call by what the group has measured a context to take, and measured after
/// it; later ones take nothing.
pub fn retain_primary(
    call: Call,
    real: impl Fn(Out<Context>, Ordinal) -> Status,
    context: Out<Context>,
    ordinal: Ordinal,
) -> Status {
    let retain = || {
        let status = real(context, ordinal);
        if let (SUCCESS, Some(handle), Ok(device)) =
            (status, context.read(), call.process.device(ordinal))
        {
            device.primary.store(handle, Ordering::Release);
        }
        status
    };
    make(call, Kind::Primary, ordinal, &retain, context, &|_| {
        cuda::cuDevicePrimaryCtxRelease_v2(ordinal);
    })
}

/// `cuDevicePrimaryCtxRelease` and `Reset`, with and without suffix: where the context ends, all that is in it is given back after the call,
/// and the context itself.
pub fn release_primary(call: Call, real: impl Fn(Ordinal) -> Status, ordinal: Ordinal) -> Status {
    let was = active(ordinal);
    let Ok(device) = call.process.device(ordinal) else {
        return real(ordinal);
    };
    let mut ended = None;
    let status = device.tear_down(
        || real(ordinal),
        |_| {
            if was && !active(ordinal) {
                let context = device.primary.load(Ordering::Acquire);
                ended = Some((context, empty(call, device, context)));
            }
        },
    );
    if let Some((context, shared)) = ended {
        gone(call, device, context, shared);
    }
    status
}

/// `cuCtxCreate`, `cuGLCtxCreate` and their `_v2`: charged before the call by what the group has measured a context to take, measured after it,
/// and destroyed again where it does not fit.
pub fn create(
    call: Call,
    real: impl Fn(Out<Context>, u32, Ordinal) -> Status,
    context: Out<Context>,
    flags: u32,
    ordinal: Ordinal,
) -> Status {
    make(
        call,
        Kind::Further,
        ordinal,
        &|| real(context, flags, ordinal),
        context,
        &discard,
    )
}

/// `cuCtxCreate_v3`: as `cuCtxCreate`.
pub fn create_v3(
    call: Call,
    real: impl Fn(Out<Context>, Opaque, i32, u32, Ordinal) -> Status,
    context: Out<Context>,
    affinity: Opaque,
    count: i32,
    flags: u32,
    ordinal: Ordinal,
) -> Status {
    make(
        call,
        Kind::Further,
        ordinal,
        &|| real(context, affinity, count, flags, ordinal),
        context,
        &discard,
    )
}

/// `cuCtxCreate_v4`: as `cuCtxCreate`.
pub fn create_v4(
    call: Call,
    real: impl Fn(Out<Context>, Opaque, u32, Ordinal) -> Status,
    context: Out<Context>,
    params: Opaque,
    flags: u32,
    ordinal: Ordinal,
) -> Status {
    make(
        call,
        Kind::Further,
        ordinal,
        &|| real(context, params, flags, ordinal),
        context,
        &discard,
    )
}

/// `cuVDPAUCtxCreate` and `_v2`: as `cuCtxCreate`.
#[allow(clippy::too_many_arguments)]
pub fn create_vdpau(
    call: Call,
    real: impl Fn(Out<Context>, u32, Ordinal, u32, Opaque) -> Status,
    context: Out<Context>,
    flags: u32,
    ordinal: Ordinal,
    vdp_device: u32,
    get_proc_address: Opaque,
) -> Status {
    make(
        call,
        Kind::Further,
        ordinal,
        &|| real(context, flags, ordinal, vdp_device, get_proc_address),
        context,
        &discard,
    )
}

fn discard(context: Context) {
    cuda::cuCtxDestroy_v2(context);
}

/// `cuCtxDestroy`, `_v2` and `cuCtxDetach`: all that is in the context is given back after the call, and the context itself.
pub fn destroy(call: Call, real: impl Fn(Context) -> Status, context: Context) -> Status {
    let Ok(device) = device::of_context(context).and_then(|ordinal| call.process.device(ordinal))
    else {
        return real(context);
    };
    let mut shared = Vec::new();
    let status = device.tear_down(
        || real(context),
        |status| {
            if status == SUCCESS {
                shared = empty(call, device, context);
            }
        },
    );
    if status == SUCCESS {
        gone(call, device, context, shared);
    }
    status
}

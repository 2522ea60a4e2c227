//! Launches: the first one of a kernel may load its code, the first one of a graph that of its kernels.

use crate::abi::{Opaque, SUCCESS, Status, Stream};
use crate::account::driver_share::RESERVE;
use crate::handler::measured;
use crate::hook::Call;

/// A process's very first launch may set up far more than its code: 92 MiB with PyTorch on an H100 (measured).
const FIRST: u64 = 128 << 20;

/// Launches a kernel, or a graph without memory nodes.
pub fn launch(call: Call, function: Opaque, real: impl Fn() -> Status) -> Status {
    if call.process.launched.contains(function) {
        return real();
    }
    let device = match call.process.current_device() {
        Ok(device) => device,
        Err(failed) => return call.process.unavailable(failed, real),
    };
    // Where the group has less than that left, most programs need less: they get what there is.
    let estimate = if call.process.launched.is_empty() {
        FIRST.min(device.free() + RESERVE).max(RESERVE)
    } else {
        RESERVE
    };
    let status = measured::run(call, device, estimate, real, None);
    if status == SUCCESS {
        call.process.launched.insert(function);
    }
    status
}

/// `cuLaunchKernel` and its twin.
#[allow(clippy::too_many_arguments)]
pub fn kernel(
    call: Call,
    real: impl Fn(Opaque, u32, u32, u32, u32, u32, u32, u32, Stream, Opaque, Opaque) -> Status,
    function: Opaque,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: Stream,
    params: Opaque,
    extra: Opaque,
) -> Status {
    launch(call, function, || {
        real(
            function, gx, gy, gz, bx, by, bz, shared, stream, params, extra,
        )
    })
}

/// `cuLaunchKernelEx` and its twin.
pub fn kernel_ex(
    call: Call,
    real: impl Fn(Opaque, Opaque, Opaque, Opaque) -> Status,
    config: Opaque,
    function: Opaque,
    params: Opaque,
    extra: Opaque,
) -> Status {
    launch(call, function, || real(config, function, params, extra))
}

/// `cuLaunchCooperativeKernel` and its twin.
#[allow(clippy::too_many_arguments)]
pub fn cooperative(
    call: Call,
    real: impl Fn(Opaque, u32, u32, u32, u32, u32, u32, u32, Stream, Opaque) -> Status,
    function: Opaque,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: Stream,
    params: Opaque,
) -> Status {
    launch(call, function, || {
        real(function, gx, gy, gz, bx, by, bz, shared, stream, params)
    })
}

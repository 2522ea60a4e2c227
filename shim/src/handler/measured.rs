//! Calls that take memory without saying how much: paid ahead by an estimate, measured after.

use crate::abi::{CUDA_ERROR_OUT_OF_MEMORY, Out, SUCCESS, Status, Stream};
use crate::account::device::Device;
use crate::account::driver_share::{Measured, RESERVE};
use crate::hook::{Call, Real};

/// Runs `real` with `estimate` bytes paid ahead. When it took more than the group has, `undo` takes it back and the program gets
/// out-of-memory; where nothing can be undone, growth stops until the group is below its limit again.
pub fn run(
    call: Call,
    device: &'static Device,
    estimate: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    if device.driver.prepay(device, call.symbol, estimate).is_err() {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    conclude(call, device, estimate, real, undo)
}

/// The rest of [`run`], after the payment.
pub fn conclude(
    call: Call,
    device: &'static Device,
    estimate: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    let before = device.driver.used();
    let status = real.call();
    match device.driver.settle(device, estimate) {
        Some(measured) => judge(call, device, before, measured, status, undo),
        None => status,
    }
}

/// What the program gets to see after a measurement: `before` is the driver's part before the call.
pub fn judge(
    call: Call,
    device: &'static Device,
    before: u64,
    measured: Measured,
    status: Status,
    undo: Option<&dyn Fn()>,
) -> Status {
    if status == SUCCESS
        && measured.overrun > 0
        && let Some(undo) = undo
    {
        undo();
        device.driver.measure(device);
        device.refuse(call.symbol, measured.used.saturating_sub(before));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    status
}

/// As [`run`] on the current device, with what the driver's reserve covers, and nothing to undo.
pub fn small(call: Call, real: &dyn Real) -> Status {
    match call.process.current_device() {
        Ok(device) => run(call, device, RESERVE, real, None),
        Err(failed) => call.process.unavailable(failed, real),
    }
}

/// `cuStreamCreate`: every few streams take a block or two, for good. The driver's reserve is paid ahead, and the rest measured after the call.
pub fn stream(
    call: Call,
    real: impl Fn(Out<Stream>, u32) -> Status,
    stream: Out<Stream>,
    flags: u32,
) -> Status {
    small(call, &|| real(stream, flags))
}

/// `cuStreamCreateWithPriority`: as `cuStreamCreate`.
pub fn stream_with_priority(
    call: Call,
    real: impl Fn(Out<Stream>, u32, i32) -> Status,
    stream: Out<Stream>,
    flags: u32,
    priority: i32,
) -> Status {
    small(call, &|| real(stream, flags, priority))
}

//! Calls that take memory without saying how much: paid ahead by an estimate, measured after.

use crate::abi::{CUDA_ERROR_OUT_OF_MEMORY, Out, SUCCESS, Status, Stream};
use crate::account::book::RESERVE;
use crate::account::device::Device;
use crate::account::driver_part::{Measured, Prepaid};
use crate::account::handles::Kind;
use crate::account::request::Request;
use crate::driver::Real;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::attempt;
use crate::handler::handles;
use crate::refusal::Refused;

/// Runs `real` with `estimate` bytes paid ahead. When it took more than the group has, `undo` takes
/// it back and the program gets out-of-memory; where nothing can be undone, growth stops until the
/// group is below its limit again.
pub fn run(
    call: Call,
    device: &'static Device,
    estimate: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    match Prepaid::pay(device, Request::insisting(call.symbol, estimate)) {
        Ok(paid) => conclude(call, device, paid, real, undo),
        Err(Refused) => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// The rest of [`run`], after the payment.
pub fn conclude(
    call: Call,
    device: &'static Device,
    paid: Prepaid<'_>,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    let before = device.driver_part.used();
    fault::point("measured");
    let status = real.call();
    match paid.settle() {
        Ok(measured) => judge(call, device, before, measured, status, undo),
        Err(_) => status,
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
        device.measure();
        device.refuse(call.symbol, measured.used.saturating_sub(before));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    status
}

/// How much a call may take on a device, bytes.
pub type Most<'a> = &'a dyn Fn(&Device) -> u64;

/// Of a call of which nothing tells how much it takes.
pub const ALL: Most<'static> = &|device| device.capacity;

/// Runs `real`, which was given a handle that is unknown, so that nothing tells on which device it
/// takes something. On each one with contexts what it may take at `most` is paid ahead, as far as
/// the group has so much left; what it takes beyond that stops growth until the group is below its
/// limit. `undo` as in [`run`].
#[cold]
pub fn unknown(call: Call, most: Most<'_>, real: &dyn Real, undo: Option<&dyn Fn()>) -> Status {
    fn on(
        call: Call,
        devices: &[&'static Device],
        most: Most<'_>,
        real: &dyn Real,
        undo: Option<&dyn Fn()>,
    ) -> Status {
        let Some((device, others)) = devices.split_first() else {
            return real.call();
        };
        let mut paid = Prepaid::none(device);
        paid.add_some(most(device));
        let next = || on(call, others, most, real, undo);
        conclude(call, device, paid, &next, undo)
    }
    on(call, &call.process.devices_in_use(), most, real, undo)
}

/// `cuStreamCreate`, `cuStreamCreateWithPriority`: every few streams take a block or two, for good.
/// The driver's reserve is paid ahead, and the rest measured after the call.
pub fn stream(call: Call, real: &dyn Real, stream: Out<Stream>) -> Status {
    let status = attempt(real, || {
        let device = call.process.current_device()?;
        Ok(run(call, device, RESERVE, real, None))
    });
    if let (SUCCESS, Some(stream)) = (status, stream.read()) {
        let handles = &call.process.handles;
        handles.insert(Kind::Stream, stream, handles::here());
    }
    status
}

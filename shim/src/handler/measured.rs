//! Driver calls that take memory of unknown size. An estimate is paid before the call, and the size
//! is measured afterwards. Payments are new charges, or come from the driver's reserve.

use crate::abi::{CUDA_ERROR_OUT_OF_MEMORY, Out, SUCCESS, Status, Stream};
use crate::account::book::RESERVE;
use crate::account::device::Device;
use crate::account::driver_part::{Measured, Prepaid};
use crate::account::handles::Kind;
use crate::account::request::Request;
use crate::driver::Real;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{self, attempt};
use crate::handler::handles;
use crate::refusal::Refused;

/// Runs `real` with `estimate` bytes paid ahead.
///
/// If the call exceeds the group's limit, `undo` undoes the call. Without `undo`, the memory stays
/// taken, and further growth is refused.
pub fn run(
    call: Call,
    device: &'static Device,
    estimate: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    match Prepaid::pay(device, Request::insisting(call.symbol, estimate)) {
        Ok(paid) => {
            let real = || device.note_answer(call.symbol, estimate, real.call());
            conclude(call, device, paid, 0, &real, undo)
        }
        Err(Refused) => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// Runs `real`, the driver's function, and measures after it. This is the part of [`run`] that
/// follows the payment `paid`. The caller records `known` bytes of the payment itself, if they
/// cannot be measured.
pub fn conclude(
    call: Call,
    device: &'static Device,
    paid: Prepaid<'_>,
    known: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    let before = device.driver_part.used();
    fault::point("measured");
    let status = real.call();
    match paid.settle() {
        Ok(measured) => judge(call, device, before, measured, status, undo),
        Err(paid) => {
            paid.settle_unmeasured(known);
            status
        }
    }
}

/// Returns the status after a measurement, and undoes a call over the limit. `before` is the
/// driver's usage before the call.
pub fn judge(
    call: Call,
    device: &'static Device,
    before: u64,
    measured: Measured,
    status: Status,
    undo: Option<&dyn Fn()>,
) -> Status {
    let Some(undo) = undo.filter(|_| status == SUCCESS) else {
        return status;
    };
    let below = device.below();
    if measured.overrun == 0 && below.is_none() {
        return status;
    }
    undo();
    device.measure();
    device.refuse(call.symbol, measured.used.saturating_sub(before), below);
    CUDA_ERROR_OUT_OF_MEMORY
}

/// A function that returns the most bytes that a call can take on a device.
pub type Most<'a> = &'a dyn Fn(&Device) -> u64;

/// The estimate for a call whose size is unbounded: all memory of the device.
pub const ALL: Most<'static> = &|device| device.capacity;

/// Runs `real` for an unknown handle, whose memory can be on any device.
///
/// Pays up to `most` bytes ahead on each device with contexts. `undo` works as in [`run`].
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
        conclude(call, device, paid, 0, &next, undo)
    }
    on(call, &call.process.devices_in_use(), most, real, undo)
}

/// The bytes that count for a stream while they cannot be measured. The driver takes 0.55 MiB for
/// each, in steps of 4 MiB at most (measured).
const STREAM: u64 = 1 << 20;

/// `cuStreamCreate`, `cuStreamCreateWithPriority`: Charges an estimate of 4 MiB before the call.
/// Measures after every fifth stream, and where the group has little room. The driver keeps the
/// memory of ended streams.
pub fn stream(call: Call, real: &dyn Real, stream: Out<Stream>) -> Status {
    let status = attempt(real, || {
        let device = call.process.current_device()?;
        aside::check_context()?;
        let paid = Prepaid::pay(device, Request::insisting(call.symbol, RESERVE))?;
        let status = device.note_answer(call.symbol, RESERVE, real.call());
        let measure = |paid| conclude(call, device, paid, RESERVE - STREAM, &|| status, None);
        Ok(paid.defer().map_or_else(measure, |()| status))
    });
    if let (SUCCESS, Some(stream)) = (status, stream.read()) {
        let handles = &call.process.handles;
        handles.insert(Kind::Stream, stream, handles::current_origin());
    }
    status
}

//! Green contexts. Each green context keeps the primary context of its device alive.

use crate::abi::{Context, Device as Ordinal, Opaque, Out, SUCCESS, Status, Stream};
use crate::account::book::RESERVE;
use crate::account::green::Green;
use crate::account::handles::{Kind, Origin};
use crate::driver::{Real, cuda};
use crate::handler::Call;
use crate::handler::aside::attempt;
use crate::handler::{capture, context, measured};

/// The most bytes that a green context takes. They stay taken until the primary context ends.
const MOST: u64 = 6 << 20;

/// `cuGreenCtxCreate`: Charges 6 MiB, and a missing primary context. Measures after the call, and
/// destroys a green context that does not fit.
pub fn create(call: Call, real: &dyn Real, green: Out<Opaque>, ordinal: Ordinal) -> Status {
    attempt(real, || {
        let device = call.process.device(ordinal)?;
        // Retains the primary context until this function ends. A missing primary context is made
        // and charged here.
        let mut primary: Context = 0;
        let place = Out::of(&mut primary);
        let retain = || cuda::cuDevicePrimaryCtxRetain(place, ordinal);
        match context::retain_primary(call, &retain, place, ordinal) {
            SUCCESS => {}
            failed => return Ok(failed),
        }
        let undo = || {
            if let Some(green) = green.read() {
                cuda::cuGreenCtxDestroy(green);
            }
        };
        let status = measured::run(call, device, MOST, real, Some(&undo));
        if status == SUCCESS
            && let Some(handle) = green.read()
        {
            let mut context: Context = 0;
            cuda::cuCtxFromGreenCtx(Out::of(&mut context), handle);
            let made = Green {
                device: ordinal,
                context,
                primary,
            };
            call.process.greens.insert(handle, made);
        }
        let release = || cuda::cuDevicePrimaryCtxRelease_v2(ordinal);
        context::release_primary(call, &release, ordinal);
        Ok(status)
    })
}

/// `cuGreenCtxDestroy`: If the primary context ends with its last green context, uncharges the
/// primary context after the call.
pub fn destroy(call: Call, real: &dyn Real, green: Opaque) -> Status {
    // The driver can reuse the handle at once, so forget the green context before the driver's
    // call.
    let Some(known) = call.process.greens.take(green) else {
        return real.call();
    };
    let status = context::release_primary(call, real, known.device);
    if status == SUCCESS {
        call.process.handles.forget_context(known.context);
        capture::forget_context(call, known.context);
    } else {
        call.process.greens.insert(green, known);
    }
    status
}

/// `cuGreenCtxStreamCreate`: Charged like `cuStreamCreate`.
pub fn stream(call: Call, real: &dyn Real, stream: Out<Stream>, green: Opaque) -> Status {
    // The stream of a green context needs no current context, so charge the green context's device.
    let Some(known) = call.process.greens.get(green) else {
        return measured::unknown(call, &|_| RESERVE, real, None);
    };
    let status = attempt(real, || {
        let device = call.process.device(known.device)?;
        Ok(measured::run(call, device, RESERVE, real, None))
    });
    if let (SUCCESS, Some(stream)) = (status, stream.read()) {
        let origin = Origin {
            context: known.context,
            owner: 0,
        };
        call.process.handles.insert(Kind::Stream, stream, origin);
    }
    status
}

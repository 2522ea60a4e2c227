//! Green contexts. Each holds the primary context alive.

use crate::abi::{Context, Device as Ordinal, Opaque, Out, SUCCESS, Status, Stream};
use crate::account::book::RESERVE;
use crate::account::green::Green;
use crate::account::handles::{Kind, Origin};
use crate::driver::{Real, cuda};
use crate::handler::Call;
use crate::handler::aside::attempt;
use crate::handler::{context, measured};

/// What a green context takes at most, for as long as the primary one lives, bytes (measured, H100,
/// 580.159.04: 6 MiB, 12, 16, 22, each with a stream).
const MOST: u64 = 6 << 20;

/// `cuGreenCtxCreate`: the primary context, where there is none, and 6 MiB for the first green one
/// are charged before the call, measured after it, and undone where they do not fit.
pub fn create(call: Call, real: &dyn Real, green: Out<Opaque>, ordinal: Ordinal) -> Status {
    attempt(real, || {
        let device = call.process.device(ordinal)?;
        // Where there is no primary context yet it is made here, and paid for as any other.
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

/// `cuGreenCtxDestroy`: the primary context may go with the last of them, and is given back then.
pub fn destroy(call: Call, real: &dyn Real, green: Opaque) -> Status {
    // Before the call: the handle may come back as another's.
    let Some(known) = call.process.greens.take(green) else {
        return real.call();
    };
    let status = context::release_primary(call, real, known.device);
    if status == SUCCESS {
        call.process.handles.forget_context(known.context);
    } else {
        call.process.greens.insert(green, known);
    }
    status
}

/// `cuGreenCtxStreamCreate`: as `cuStreamCreate`.
pub fn stream(call: Call, real: &dyn Real, stream: Out<Stream>, green: Opaque) -> Status {
    // No context need be current.
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

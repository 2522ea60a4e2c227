//! Synchronise calls: inside them the driver gives back what pools hold above their release threshold.

use crate::abi::{Context, Event, Status, Stream};
use crate::hook::Call;

fn synchronized(call: Call, status: Status, all: bool) -> Status {
    call.process.pools.synchronized(call.process, all);
    call.process.answer();
    status
}

/// `cuStreamSynchronize` and its twin: given back after the call is what pools no longer reserve, where anything was allocated or freed since.
pub fn stream(call: Call, real: impl Fn(Stream) -> Status, stream: Stream) -> Status {
    synchronized(call, real(stream), false)
}

/// `cuEventSynchronize`: as `cuStreamSynchronize`.
pub fn event(call: Call, real: impl Fn(Event) -> Status, event: Event) -> Status {
    synchronized(call, real(event), false)
}

/// `cuCtxSynchronize`: as `cuStreamSynchronize`; after it no work is left that could let pools shrink.
pub fn current(call: Call, real: impl Fn() -> Status) -> Status {
    synchronized(call, real(), true)
}

/// `cuCtxSynchronize_v2`: as `cuCtxSynchronize`.
pub fn context(call: Call, real: impl Fn(Context) -> Status, context: Context) -> Status {
    synchronized(call, real(context), true)
}

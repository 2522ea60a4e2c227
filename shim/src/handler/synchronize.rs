//! Synchronise calls: inside them the driver gives back what pools hold above their release
//! threshold.
//!
//! They may wait for long, and with `CU_CTX_SCHED_BLOCKING_SYNC` a thread that is cancelled ends
//! there (measured, H200, 580.159). So they are not called from in here: the handlers come after
//! them.

use crate::handler::Call;

fn synchronized(call: Call, all: bool) {
    call.process.synchronized(all);
    call.process.answer();
}

/// `cuStreamSynchronize` and its twin, `cuEventSynchronize`: given back after the call is what
/// pools no longer reserve, where anything was allocated or freed since.
pub fn work(call: Call) {
    synchronized(call, false);
}

/// `cuCtxSynchronize`, `cuCtxSynchronize_v2`: as `cuStreamSynchronize`; after it no work is left
/// that could let pools shrink.
pub fn all_work(call: Call) {
    synchronized(call, true);
}

//! The driver's synchronise calls. During these calls the driver gives back memory that pools hold
//! above their release threshold.
//!
//! A synchronise call can wait for long. With `CU_CTX_SCHED_BLOCKING_SYNC` a cancelled thread ends
//! inside the call (measured, H200, 580.159). So the exported functions call the driver first,
//! outside of any hook, and the handlers run after the driver's call.

use crate::handler::Call;

fn synchronized(call: Call, all: bool) {
    call.process.synchronized(all);
    call.process.answer();
}

/// `cuStreamSynchronize`, `cuEventSynchronize`: Uncharges, after the call, the memory that pools no
/// longer reserve. Asks the driver about the pools only if pool memory was allocated or freed since
/// the last synchronise call.
pub fn work(call: Call) {
    synchronized(call, false);
}

/// `cuCtxSynchronize`, `cuCtxSynchronize_v2`: Uncharges like `cuStreamSynchronize`. After this call
/// no work is left on the GPU that could let pools shrink later.
pub fn all_work(call: Call) {
    synchronized(call, true);
}

//! The driver's synchronise calls, which let pools shrink to their release threshold.
//!
//! A cancelled thread can end in such a call. So the exported function calls the driver outside of
//! any hook, and the handler runs afterwards.

use crate::handler::Call;

fn synchronized(call: Call, all: bool) {
    call.process.synchronized(all);
    call.process.answer();
}

/// `cuStreamSynchronize`, `cuEventSynchronize`: Uncharges memory that pools no longer reserve, if
/// pool memory was used since the last such call.
pub fn work(call: Call) {
    synchronized(call, false);
}

/// `cuCtxSynchronize`, `cuCtxSynchronize_v2`: Uncharges like `cuStreamSynchronize`. No work is left
/// afterwards that could let pools shrink later.
pub fn all_work(call: Call) {
    synchronized(call, true);
}

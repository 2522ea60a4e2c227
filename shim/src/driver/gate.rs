//! Calls of the driver that must not begin while the driver keeps this process's memory on the
//! host: see `gate.rs` of the crate `ledger`.

use std::ffi::CStr;

use gpulimit_group::Undisturbed;
use gpulimit_ledger::Gate;
use once_cell::race::OnceBox;

use crate::abi::Status;

/// The functions whose calls crash a process whose memory is on the host, or fail there with
/// `CUDA_ERROR_OPERATING_SYSTEM`.
pub const GATED: [&CStr; 21] = [
    c"cuCtxSynchronize",
    c"cuCtxSynchronize_v2",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetName",
    c"cuEventElapsedTime",
    c"cuEventElapsedTime_v2",
    c"cuEventQuery",
    c"cuEventSynchronize",
    c"cuIpcGetMemHandle",
    c"cuMemAllocAsync",
    c"cuMemAllocAsync_ptsz",
    c"cuMemAllocFromPoolAsync",
    c"cuMemAllocFromPoolAsync_ptsz",
    c"cuMemGetInfo",
    c"cuMemGetInfo_v2",
    c"cuMemPoolDestroy",
    c"cuModuleUnload",
    c"cuStreamQuery",
    c"cuStreamQuery_ptsz",
    c"cuStreamSynchronize",
    c"cuStreamSynchronize_ptsz",
];

/// Returns the gate of this process; `None` if the process is in no group. A forked child must not
/// use its parent's gate.
pub type Find = fn() -> Option<&'static Gate<'static>>;

static FIND: OnceBox<Find> = OnceBox::new();

/// Makes the gate known to the calls of the driver.
pub fn find_by(find: Find) {
    let _ = FIND.set(Box::new(find));
}

/// Returns whether calls of a function must not begin while this process's memory is on the host.
/// The driver makes the calls of most others wait.
pub const fn is_gated(symbol: &CStr) -> bool {
    let mut at = 0;
    while at < GATED.len() {
        if equal(GATED[at].to_bytes(), symbol.to_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Calls the driver, once this process's memory is not on the host. A cancelled thread can end in
/// the call, so no value here is dropped: such a call counts as under way for ever.
#[inline]
#[cfg_attr(not(debug_assertions), allow(unused_variables))]
pub fn pass(symbol: &CStr, call: impl FnOnce() -> Status) -> Status {
    // For scripts/prove-hooks: a debug build leaves out the hook that this variable names.
    #[cfg(debug_assertions)]
    if std::env::var("GPULIMIT_DEBUG_MUTANT").is_ok_and(|name| name.as_bytes() == symbol.to_bytes())
    {
        return call();
    }
    let Some(gate) = FIND.get().and_then(|find| find()) else {
        return call();
    };
    if !gate.enter() {
        wait(gate);
    }
    let status = call();
    gate.leave();
    status
}

#[cold]
fn wait(gate: &Gate<'_>) {
    let _undisturbed = Undisturbed::new();
    gate.wait();
}

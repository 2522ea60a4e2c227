//! Calls of the driver that must not begin while the driver keeps this process's memory on the
//! host: see `gate.rs` of the crate `ledger`.

use std::ffi::CStr;

use gpulimit_ledger::{Calls, Gate};
use once_cell::race::OnceBox;

use crate::abi::Status;

/// How the calls of the driver reach the gate of this process.
pub struct Door {
    /// Returns the gate; `None` if the process is in no group. A forked child must not use its
    /// parent's gate.
    pub find: fn() -> Option<&'static Gate<'static>>,
    /// Waits at a closed gate.
    pub wait: fn(&Gate<'_>, Calls),
}

static DOOR: OnceBox<Door> = OnceBox::new();

/// Makes the gate known to the calls of the driver.
pub fn reach_by(door: Door) {
    let _ = DOOR.set(Box::new(door));
}

/// Calls the driver, once this process's memory is not on the host. A cancelled thread can end in
/// the call, so no value here is dropped: such a call counts as under way for ever.
#[inline]
#[cfg_attr(not(debug_assertions), allow(unused_variables))]
pub fn pass(symbol: &CStr, calls: Calls, call: impl FnOnce() -> Status) -> Status {
    // For scripts/prove-hooks: a debug build leaves out the hook that this variable names.
    #[cfg(debug_assertions)]
    if std::env::var("GPULIMIT_DEBUG_MUTANT").is_ok_and(|name| name.as_bytes() == symbol.to_bytes())
    {
        return call();
    }
    let Some(gate) = DOOR.get().and_then(|door| (door.find)()) else {
        return call();
    };
    if !gate.enter(calls) {
        wait(gate, calls);
    }
    let status = call();
    gate.leave(calls);
    status
}

#[cold]
fn wait(gate: &Gate<'_>, calls: Calls) {
    if let Some(door) = DOOR.get() {
        (door.wait)(gate, calls);
    }
}

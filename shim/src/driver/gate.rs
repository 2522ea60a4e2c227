//! Calls of the driver that must not begin while the driver keeps this process's memory on the
//! host: see `gate.rs` of the crate `ledger`.

use std::ffi::CStr;

use gpulimit_ledger::{Calls, Gate, Place};
use once_cell::race::{OnceBox, OnceRef};

use crate::abi::Status;

/// How the calls of the driver reach the gate of this process.
pub struct Door {
    /// Returns the gate; `None` if the process is in no group. A forked child must not use its
    /// parent's gate.
    pub find: fn() -> Option<&'static Gate>,
    /// Waits at a closed gate.
    pub wait: fn(&'static Gate, Calls, Place<'_>) -> Place<'static>,
}

static DOOR: OnceBox<Door> = OnceBox::new();
/// The gate, in memory that the kernel wipes in forked children; unset where it cannot.
static GATE: OnceRef<'static, OnceRef<'static, Gate>> = OnceRef::new();

/// Makes the gate known to the calls of the driver.
pub fn reach_by(door: Door, wiped: Option<&'static OnceRef<'static, Gate>>) {
    let _ = DOOR.set(Box::new(door));
    if let Some(wiped) = wiped {
        let _ = GATE.set(wiped);
    }
}

/// Calls the driver, once this process's memory is not on the host. A cancelled thread can end in
/// the call, so no value here is dropped: such a call counts as under way for ever. The begin of a
/// call that is made by the million (`is_frequent`) is inlined.
#[inline]
#[cfg_attr(not(debug_assertions), allow(unused_variables))]
pub fn pass(
    symbol: &CStr,
    (calls, is_frequent): (Calls, bool),
    call: impl FnOnce() -> Status,
) -> Status {
    // For scripts/prove-hooks: a debug build leaves out the hook that this variable names.
    #[cfg(debug_assertions)]
    if std::env::var("GPULIMIT_DEBUG_MUTANT").is_ok_and(|name| name.as_bytes() == symbol.to_bytes())
    {
        return call();
    }
    let begun = match is_frequent {
        true => begin(calls),
        false => begin_by_call(calls),
    };
    let Some((gate, place)) = begun else {
        return call();
    };
    let status = call();
    gate.leave(calls, place);
    status
}

/// Begins a call; `None` without a gate.
#[inline]
fn begin(calls: Calls) -> Option<(&'static Gate, Place<'static>)> {
    let gate = GATE.get().map_or_else(find, OnceRef::get)?;
    let entered = gate.enter(calls);
    Some((
        gate,
        entered.unwrap_or_else(|place| wait(gate, calls, place)),
    ))
}

#[inline(never)]
fn begin_by_call(calls: Calls) -> Option<(&'static Gate, Place<'static>)> {
    begin(calls)
}

#[cold]
#[inline(never)]
fn find() -> Option<&'static Gate> {
    DOOR.get().and_then(|door| (door.find)())
}

#[cold]
#[inline(never)]
fn wait<'a>(gate: &'static Gate, calls: Calls, place: Place<'a>) -> Place<'a> {
    match DOOR.get() {
        Some(door) => (door.wait)(gate, calls, place),
        None => place,
    }
}

//! Calls of the driver that must not begin while the driver keeps this process's memory on the
//! host: see `gate.rs` of the crate `ledger`.

use std::ffi::CStr;

use gpulimit_ledger::{Calls, Gate, GateLine, Place};
use once_cell::race::{OnceBox, OnceRef};

use crate::abi::Status;
use crate::driver::inside;
use crate::fault;

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
/// the call, so no value here is dropped: such a call counts as under way for ever.
#[inline]
pub fn pass(symbol: &CStr, calls: Calls, call: impl FnOnce() -> Status) -> Status {
    if is_mutant(symbol) {
        return call();
    }
    let Some((gate, place)) = begin(calls) else {
        return call();
    };
    let status = call();
    gate.leave(calls, place);
    status
}

/// A call of the driver outside of a hook, of a function that is called by the million. If the
/// thread is cancelled in it, the call counts as under way for ever.
pub struct AtOnce(Option<&'static GateLine>);

impl AtOnce {
    /// Does the work of [`pass`], where there is no more to do than to mark the call. Otherwise
    /// returns `None`, and has done nothing.
    #[inline(always)]
    pub fn begin(symbol: &CStr, is_gated: bool) -> Option<Self> {
        if inside::get() != 0 || is_mutant(symbol) || fault::is_asked_for() {
            return None;
        }
        if !is_gated {
            return Some(AtOnce(None));
        }
        let line = GATE.get()?.get()?.enter_line(inside::own(), Calls::Short)?;
        Some(AtOnce(Some(line)))
    }

    /// Makes the call.
    #[inline(always)]
    pub fn run(self, call: impl FnOnce() -> Status) -> Status {
        let status = inside::outermost(call);
        self.leave();
        status
    }

    /// Ends the call; also one that was not made.
    #[inline(always)]
    pub fn leave(self) {
        if let Some(line) = self.0 {
            line.leave();
        }
    }
}

/// For scripts/prove-hooks: a debug build leaves out the hook that this variable names.
#[inline(always)]
fn is_mutant(symbol: &CStr) -> bool {
    let is = |name: String| name.as_bytes() == symbol.to_bytes();
    cfg!(debug_assertions) && std::env::var("GPULIMIT_DEBUG_MUTANT").is_ok_and(is)
}

/// Begins a call; `None` without a gate.
#[inline(never)]
fn begin(calls: Calls) -> Option<(&'static Gate, Place<'static>)> {
    let gate = match GATE.get() {
        Some(place) => place.get(),
        None => (DOOR.get()?.find)(),
    }?;
    let entered = gate.enter(inside::own(), calls);
    let wait = |place| match DOOR.get() {
        Some(door) => (door.wait)(gate, calls, place),
        None => place,
    };
    Some((gate, entered.unwrap_or_else(wait)))
}

//! What one row of the hook table turns into.
//!
//! A hooked function does, in this order: "is there a limit at all?", re-entrancy guard, panic
//! boundary, handler. Whenever one of the first two says so, the driver gets the call exactly as
//! the program made it.
#![allow(unsafe_code)]

mod frames;
mod guard;
#[cfg(target_arch = "x86_64")]
mod pass;

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpulimit_group::Undisturbed;

use crate::abi::Status;
use crate::account::Process;
use crate::account::limited::limited;
use crate::handler::Call;

/// How a function is treated. Shown by `gpulimit doctor` and the docs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(
    non_camel_case_types,
    reason = "the table writes classes as plain words"
)]
pub enum Class {
    /// Charge, call, correct to the real size or give back.
    sized,
    /// The pool's reserved bytes are the charge.
    pooled,
    /// No size exists: call, measure, charge; undo when it does not fit.
    measured,
    /// Uncharge after the driver's success.
    release,
    /// Measured at the first launch of a kernel or a graph; later ones pass. Graphs with memory
    /// nodes are paid for ahead.
    launch,
    /// The group's answer in place of the machine's.
    view,
    /// Remember, charge nothing.
    track,
    /// Hands out function pointers.
    lookup,
}

/// One row of the table, as data.
#[derive(Clone, Copy)]
pub struct Row {
    /// The exported symbol.
    pub symbol: &'static std::ffi::CStr,
    /// How it is treated.
    pub class: Class,
    /// What a call returns whose handler panicked: a fault of ours must not unwind into the
    /// program.
    pub broken: Status,
    /// Address of our function of that name.
    pub hook: *const c_void,
}

impl Row {
    /// The symbol, for messages.
    pub fn name(&self) -> &'static str {
        // SAFETY: the table's names are those of functions of Rust.
        unsafe { std::str::from_utf8_unchecked(self.symbol.to_bytes()) }
    }
}

// SAFETY: the pointer is the address of a function, valid from any thread.
unsafe impl Sync for Row {}

/// Runs a hook: with a [`Call`] its handler, without one the driver's function.
#[inline(always)]
pub fn enter<F: Fn(Option<Call>) -> Status>(row: &'static Row, hook: F) -> Status {
    /// # Safety
    /// `hook` points to an `F`.
    unsafe fn call<F: Fn(Option<Call>) -> Status>(hook: *const (), call: Option<Call>) -> Status {
        // SAFETY: the caller's promise.
        unsafe { (*hook.cast::<F>())(call) }
    }
    let hook = &raw const hook;
    // SAFETY: a closure with the function for its type, and it outlives the call.
    unsafe { enter_by(row, hook.cast(), call::<F>) }
}

/// As [`enter`], once for all hooks: they are many, and a program calls few of them often. A
/// pointer and a function, as a `dyn Fn` has a table of its own for each closure, of which every
/// word is relocated in every program.
///
/// # Safety
/// `call` may be called with `hook`.
#[inline(never)]
unsafe fn enter_by(
    row: &'static Row,
    hook: *const (),
    call: unsafe fn(*const (), Option<Call>) -> Status,
) -> Status {
    // SAFETY: the caller's promise.
    let hook = |with| unsafe { call(hook, with) };
    // Launches and calls of pools protect their slow ways by themselves: cancelled threads pass the
    // others.
    let slow = !matches!(row.class, Class::launch | Class::pooled);
    run(row, slow, || hook(None), |call| hook(Some(call)))
}

/// A hook whose work comes after the driver's call, which may wait for long: the call is made
/// outside of everything else, so that a thread that is cancelled in it ends there, as without us.
/// Returns the `status` that the call came to.
#[inline(never)]
pub fn after(row: &'static Row, status: Status, handler: fn(Call)) -> Status {
    let done = |call| {
        handler(call);
        status
    };
    run(row, true, || status, done)
}

/// As [`enter`], for the few that programs call by the million: all in one function.
///
/// Calls are also where other members' requests for what is held unused are answered: all but those
/// of pools, which are to cost next to nothing, and of which the waiting ones answer by themselves.
///
/// `undisturbed`: cancellation is put off, as the driver or we may come to a call at which a
/// cancelled thread would end.
#[inline(always)]
pub fn run(
    row: &'static Row,
    undisturbed: bool,
    real: impl Fn() -> Status,
    handler: impl FnOnce(Call) -> Status,
) -> Status {
    #[cfg(feature = "mutants")]
    if std::env::var_os("GPULIMIT_MUTANT").is_some_and(|name| name == row.name()) {
        return real();
    }
    if !limited() {
        return real();
    }
    let _undisturbed = undisturbed.then(Undisturbed::new);
    let handled = guard::alone(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let process = Process::current();
            if row.class != Class::pooled {
                process.answer();
            }
            let symbol = row.name();
            handler(Call { process, symbol })
        }))
    });
    match handled {
        Some(Ok(status)) => status,
        Some(Err(panic)) => panicked(panic, row),
        None => real(),
    }
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>, row: &Row) -> Status {
    let (symbol, broken) = (row.name(), row.broken);
    crate::message::line(format_args!(
        "internal error in {symbol}: the call returns error {broken}. Please report this bug"
    ));
    // What was thrown may panic in turn when it is dropped.
    std::mem::forget(panic);
    // The driver's calls in this are no program's.
    let recovered = guard::alone(|| catch_unwind(|| Process::current().recover()));
    if let Some(Err(panic)) = recovered {
        std::mem::forget(panic);
    }
    broken
}

#[cfg(target_arch = "x86_64")]
pub(crate) use pass::pass;

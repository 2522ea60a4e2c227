//! The part of a hook that all hooked functions share: the check for a limit, the re-entrancy guard
//! and the panic boundary around the handler.
//!
//! Without a limit, and where the guard says so, the driver gets the call exactly as the program
//! made it.
#![allow(unsafe_code)]

mod guard;
#[cfg(target_arch = "x86_64")]
mod pass;

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpulimit_group::{Errno, Undisturbed};

use crate::abi::Status;
use crate::account::Process;
use crate::account::limited::limited;
use crate::driver::{Real, inside};
use crate::handler::Call;

/// The class of a hook: how the hook accounts for memory. `gpulimit doctor` and
/// docs/internals/hooks.md show the class of each hook.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(
    non_camel_case_types,
    reason = "the hook table writes the classes as lower-case words"
)]
pub enum Class {
    /// The hook charges the bytes, calls the driver, and then corrects the charge to the real size
    /// or gives it back.
    sized,
    /// The hook charges the bytes that the memory pool reserves from the GPU.
    pooled,
    /// The size is unknown before the call. The hook charges an estimate, measures afterwards, and
    /// undoes a call that does not fit.
    measured,
    /// The hook uncharges the memory after the driver has freed it.
    release,
    /// The hook measures at the first launch of a kernel or graph. Graphs with memory nodes are
    /// charged before each launch.
    launch,
    /// The hook answers the program with the group's figures for memory instead of the GPU's.
    view,
    /// The hook charges nothing, but remembers the effect of the call for other hooks.
    track,
    /// The hook charges nothing. It makes the call wait while the process is suspended, because the
    /// driver does not.
    gate,
    /// The hook replaces the addresses of driver functions that the driver hands out by the
    /// addresses of hooks.
    lookup,
}

/// One row of the hook table.
#[derive(Clone, Copy)]
pub struct Row {
    /// The exported symbol.
    pub symbol: &'static std::ffi::CStr,
    /// The hash of the symbol in tables of the dynamic linker.
    pub hash: u32,
    /// The class: how the hook accounts for memory.
    pub class: Class,
    /// The status that the hooked function returns when its handler panics, because a panic must
    /// not unwind into the program.
    pub broken: Status,
    /// The address of the exported function that programs call instead of the driver's function.
    pub hook: *const c_void,
}

impl Row {
    /// Returns the name of the exported symbol, for messages.
    pub fn name(&self) -> &'static str {
        // SAFETY: the symbols are written as Rust identifiers in the table, so they are valid
        // UTF-8.
        unsafe { std::str::from_utf8_unchecked(self.symbol.to_bytes()) }
    }

    /// Returns whether the handler takes no lock of a pool or of graph memory. Calls of other
    /// functions go straight on where the outer call holds such a lock.
    #[cold]
    fn needs_no_pool(&self) -> bool {
        matches!(self.class, Class::sized | Class::view | Class::lookup)
            || self.name().starts_with("cuMemFree")
    }
}

// SAFETY: the pointer is the address of a function, which is valid in every thread.
unsafe impl Sync for Row {}

/// What a handler gets: the call, and the driver's function with the program's arguments.
pub type Entered<'a> = (Call, &'a dyn Real);

/// Runs a hook. `hook` calls the handler when it gets a [`Call`], and the driver's function when it
/// gets `None`.
#[inline(always)]
pub fn enter<F: Fn(Option<Entered<'_>>) -> Status>(row: &'static Row, hook: F) -> Status {
    /// # Safety
    /// `hook` points to an `F`.
    unsafe fn call<F: Fn(Option<Entered<'_>>) -> Status>(
        hook: *const (),
        call: Option<Entered<'_>>,
    ) -> Status {
        // SAFETY: the caller promises that `hook` points to an `F`.
        unsafe { (*hook.cast::<F>())(call) }
    }
    let hook = &raw const hook;
    // SAFETY: `hook` points to an `F`, as `call::<F>` expects, and the closure outlives the call.
    unsafe { enter_by(row, hook.cast(), call::<F>) }
}

/// A hook of any function, for [`enter_by`].
struct Hook {
    hook: *const (),
    call: unsafe fn(*const (), Option<Entered<'_>>) -> Status,
}

impl Hook {
    fn run(&self, with: Option<Entered<'_>>) -> Status {
        // SAFETY: the caller of `enter_by` promises that `call` may be called with `hook`.
        unsafe { (self.call)(self.hook, with) }
    }
}

impl Real for Hook {
    fn call(&self) -> Status {
        inside::visit(|| self.run(None))
    }
}

/// Does the work of [`enter`], compiled once for all hooks. A pointer and a function replace a `dyn
/// Fn`, because vtables need relocation in every program.
///
/// # Safety `call` may be called with `hook`.
#[inline(never)]
unsafe fn enter_by(
    row: &'static Row,
    hook: *const (),
    call: unsafe fn(*const (), Option<Entered<'_>>) -> Status,
) -> Status {
    let hook = Hook { hook, call };
    // Handlers of launches and pools put off the thread's cancellation themselves, in their slow
    // paths.
    let slow = !matches!(row.class, Class::launch | Class::pooled);
    run(
        row,
        slow,
        || hook.run(None),
        |call| hook.run(Some((call, &hook))),
    )
}

/// Runs `handler` after the driver's call, and returns `status`, the call's result. The driver's
/// call ran outside of the hook.
#[inline(never)]
pub fn after(row: &'static Row, status: Status, handler: fn(Call)) -> Status {
    let done = |call| {
        handler(call);
        status
    };
    run(row, true, || status, done)
}

/// Runs a hook. Inlined into very frequent functions; other hooks run through [`enter`] or
/// [`after`].
///
/// First answers requests of other members for unused memory. Calls of memory pools skip this check
/// to be fast.
///
/// `undisturbed` puts off the thread's cancellation, so that the thread does not end in the driver
/// or in gpulimit.
#[inline(always)]
pub fn run(
    row: &'static Row,
    undisturbed: bool,
    real: impl Fn() -> Status,
    handler: impl FnOnce(Call) -> Status,
) -> Status {
    // For scripts/prove-hooks: a debug build leaves out the hook that this variable names.
    #[cfg(debug_assertions)]
    if std::env::var_os("GPULIMIT_DEBUG_MUTANT").is_some_and(|name| name == row.name()) {
        return real();
    }
    if !limited() {
        return real();
    }
    let _errno = Errno::keep();
    let _undisturbed = undisturbed.then(Undisturbed::new);
    let handled = guard::alone(|is_nested| {
        catch_unwind(AssertUnwindSafe(|| {
            let process = Process::current();
            if is_nested {
                if inside::is_closed() && !row.needs_no_pool() {
                    return real();
                }
            } else if row.class != Class::pooled {
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

/// Runs a function of the C interface, behind the re-entrancy guard and the panic boundary. Returns
/// `None` in a signal handler that has interrupted a hook, and after a panic.
pub fn own<T>(function: impl FnOnce() -> T) -> Option<T> {
    let _undisturbed = Undisturbed::new();
    match guard::alone(|_| catch_unwind(AssertUnwindSafe(function)))? {
        Ok(answer) => Some(answer),
        Err(panic) => {
            // Dropping the payload of a panic can panic again, so the payload is leaked.
            std::mem::forget(panic);
            None
        }
    }
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>, row: &Row) -> Status {
    let (symbol, broken) = (row.name(), row.broken);
    crate::message::line(format_args!(
        "internal error in {symbol}: the call returns error {broken}. Please report this bug"
    ));
    // Dropping the payload of a panic can panic again, so the payload is leaked.
    std::mem::forget(panic);
    let recovered = guard::alone(|_| catch_unwind(|| Process::current().recover()));
    if let Some(Err(panic)) = recovered {
        std::mem::forget(panic);
    }
    broken
}

pub use guard::visit;
#[cfg(target_arch = "x86_64")]
pub(crate) use pass::{movable, pass};

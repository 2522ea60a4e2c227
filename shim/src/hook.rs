//! What one row of the hook table turns into.
//!
//! A hooked function does, in this order: "is there a limit at all?", re-entrancy guard, panic boundary, handler.
//! Whenever one of the first two says so, the driver gets the call exactly as the program made it.
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
use crate::process::{Process, limited};

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
    /// Measured at the first launch of a kernel or a graph; later ones pass. Graphs with memory nodes are paid for ahead.
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
    /// What a call returns whose handler panicked: a fault of ours must not unwind into the program.
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

/// Who called: what a handler needs besides the arguments.
#[derive(Clone, Copy)]
pub struct Call {
    /// This process's account.
    pub process: &'static Process,
    /// The symbol, for messages.
    pub symbol: &'static str,
}

/// The driver's function with the arguments of the program's call. A trait of our own, as a vtable of `dyn Fn` has two more copies of the closure.
pub trait Real {
    /// Calls it.
    fn call(&self) -> Status;
}

impl<F: Fn() -> Status> Real for F {
    #[inline]
    fn call(&self) -> Status {
        self()
    }
}

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

/// As [`enter`], once for all hooks: they are many, and a program calls few of them often. A pointer and a function, as a `dyn Fn` has a table of its own
/// for each closure, of which every word is relocated in every program.
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
    // Launches and calls of pools protect their slow ways by themselves: cancelled threads pass the others.
    let slow = !matches!(row.class, Class::launch | Class::pooled);
    run(row, slow, || hook(None), |call| hook(Some(call)))
}

/// A hook whose work comes after the driver's call, which may wait for long: the call is made outside of everything else, so that a thread that is
/// cancelled in it ends there, as without us. Returns the `status` that the call came to.
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
/// Calls are also where other members' requests for what is held unused are answered: all but those of pools, which are to cost next to
/// nothing, and of which the waiting ones answer by themselves.
///
/// `undisturbed`: cancellation is put off, as the driver or we may come to a call at which a cancelled thread would end.
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
        "internal error in {symbol}; the call fails with {broken}. Please report this"
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

/// The one list of functions that we stand in front of, and of those that we only call.
///
/// For every row it makes the exported `extern "C"` function and the typed call of the driver's own; for each library the rows as
/// data and the names to resolve. Nothing else names CUDA symbols.
macro_rules! table {
    (
        $( $(#[$doc:meta])* library $module:ident ($library:ident, $soname:literal, missing = $missing:expr, broken = $broken:expr) {
            hooks { $( $class:ident $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path $(, as $way:ident)? $(, unless $known:path : $handle:ident)? $(, known by $register:ident $launched:ident)? ; )* }
            calls { $( $call:ident ( $($carg:ident : $cty:ty),* ) ; )* }
        } )*
    ) => { $(
        $(#[$doc])*
        #[allow(non_snake_case, non_upper_case_globals, non_camel_case_types, clippy::too_many_arguments)]
        pub mod $module {
            use super::*;
            use crate::hook::{Class, Row};
            use crate::driver::Library;
            use std::sync::atomic::AtomicPtr;
            use std::ptr::null_mut;

            #[repr(usize)]
            #[derive(Clone, Copy)]
            enum Index { $( $name, )* $( $call, )* Count }

            const COUNT: usize = Index::Count as usize;
            static ADDRESSES: [AtomicPtr<std::ffi::c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];

            /// The hooked functions.
            pub static ROWS: [Row; [$( stringify!($name) ),*].len()] = [ $( Row {
                symbol: match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) { Ok(s) => s, Err(_) => c"" },
                class: Class::$class,
                broken: $broken,
                hook: exports::$name as *const std::ffi::c_void,
            }, )* ];

            static CALLS: &[&std::ffi::CStr] = &[ $( match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($call), "\0").as_bytes()) { Ok(s) => s, Err(_) => c"" }, )* ];

            /// The real library.
            pub static $library: Library = Library::new(
                $soname,
                &ROWS,
                CALLS,
                &ADDRESSES,
            );

            table!(@real inline(never), $library, $missing, $( $name ( $($arg : $ty),* ) ; )*);
            table!(@real inline, $library, $missing, $( $call ( $($carg : $cty),* ) ; )*);

            /// Whether this driver has the function.
            #[allow(dead_code)]
            pub mod has {
                use super::*;
                $( pub fn $name() -> bool { !$library.address(Index::$name as usize).is_null() } )*
                $( pub fn $call() -> bool { !$library.address(Index::$call as usize).is_null() } )*
            }

            /// What the dynamic linker binds programs to.
            mod exports {
                use super::*;
                $( table!(@export $name ( $($arg : $ty),* ) => $handler $(, as $way)? $(, unless $known : $handle)? $(, known by $register $launched)?); )*
            }
        }
    )* };

    (@export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path $(, unless $known:path : $handle:ident)?) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            // The common case of calls that programs make by the million: one look, no guard, no handler.
            #[allow(unused_variables)]
            let real = || super::$name($($arg),*);
            $( if $known($handle) { return real(); } )?
            table!(@enter $name ( $($arg : $ty),* ) => $handler)
        }
    };

    (@export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path, as hot) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            crate::hook::run(
                const { &ROWS[Index::$name as usize] },
                false,
                || super::$name($($arg),*),
                |call| $handler(call, |$($arg: $ty),*| super::$name($($arg),*), $($arg),*),
            )
        }
    };

    (@export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path, as wait) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            let status = super::$name($($arg),*);
            crate::hook::after(const { &ROWS[Index::$name as usize] }, status, $handler)
        }
    };

    (@enter $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path) => {{
        // The call leaves no frame of ours behind. A thread that is cancelled in the driver is
        // unwound by libgcc_s, and the portable library's frames know only an unwinder of their own.
        if crate::process::unlimited() {
            return super::$name($($arg),*);
        }
        crate::hook::enter(const { &ROWS[Index::$name as usize] }, move |call: Option<crate::hook::Call>| match call {
            // A pointer, so that the twins of a function share the handler.
            Some(call) => $handler(call, super::$name as fn($($ty),*) -> Status, $($arg),*),
            None => super::$name($($arg),*),
        })
    }};

    (@export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path, known by $register:ident $launched:ident) => {
        /// What passes a launch that is known.
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            extern "C-unwind" fn others($($arg: $ty),*) -> Status {
                table!(@enter $name ( $($arg : $ty),* ) => $handler)
            }
            crate::hook::pass!($register, ADDRESSES, Index::$name as usize, others)
        }

        #[cfg(not(target_arch = "x86_64"))]
        table!(@export $name ( $($arg : $ty),* ) => $handler, unless crate::account::launched::is_recent : $launched);
    };

    (@real $inline:meta, $library:ident, $missing:expr, $( $name:ident ( $($arg:ident : $ty:ty),* ) ; )*) => { $(
        /// The driver's own function; a fixed error when this driver has none of that name.
        #[$inline]
        #[allow(dead_code, reason = "some are only asked for by `has`")]
        pub fn $name($($arg: $ty),*) -> Status {
            let mut address = ADDRESSES[Index::$name as usize].load(std::sync::atomic::Ordering::Relaxed);
            if address.is_null() {
                address = $library.address(Index::$name as usize);
                if address.is_null() {
                    return $missing;
                }
            }
            // SAFETY: the address is the driver's function of this name; the row's types are those of its header.
            // The pointers among the arguments come from the program's own call or from `Out::of`.
            unsafe {
                let function: unsafe extern "C-unwind" fn($($ty),*) -> Status = std::mem::transmute(address);
                function($($arg),*)
            }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use pass::pass;
pub(crate) use table;

//! Typed calls of the driver's functions, one for each row of the hook table.
#![allow(
    unsafe_code,
    reason = "the macro expands to unsafe driver calls; their SAFETY comments are in this file"
)]

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use gpulimit_ledger::Calls;

use super::{gate, inside};
use crate::abi::*;
use crate::table::table;

/// Splits a text into its strings. Each string in the text ends with a NUL.
const fn split<const COUNT: usize>(text: &'static str) -> [&'static CStr; COUNT] {
    let (mut found, mut at, mut rest) = ([c""; COUNT], 0, text.as_bytes());
    while at < COUNT {
        found[at] = match CStr::from_bytes_until_nul(rest) {
            Ok(string) => string,
            Err(_) => panic!("the text has too few strings"),
        };
        (_, rest) = rest.split_at(found[at].count_bytes() + 1);
        at += 1;
    }
    found
}

/// Makes, for each library: the symbols to look up, their addresses, and a typed function for each
/// symbol.
macro_rules! functions {
    (
        $( $(#[$doc:meta])* library $module:ident (
            $library:ident, $soname:literal, missing = $missing:expr, broken = $broken:expr
        ) {
            hooks { $(
                $class:ident $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path
                $(, as $($way:ident)+)? $(, given ( $($given:ident),* ))?
                $(, first $first:path)? $(, unless $known:path : $handle:ident)?
                $(, known by $register:ident $launched:ident)? ;
            )* }
            calls { $( $call:ident ( $($carg:ident : $cty:ty),* ) ; )* }
        } )*
    ) => { $(
        $(#[$doc])*
        #[allow(
            non_snake_case,
            non_upper_case_globals,
            non_camel_case_types,
            clippy::too_many_arguments
        )]
        pub mod $module {
            use super::*;
            use crate::driver::library::Library;
            use std::ffi::c_void;
            use std::ptr::null_mut;
            use std::sync::atomic::AtomicPtr;

            /// The index of each function in `NAMES` and `ADDRESSES`; the hooked functions come
            /// first.
            #[repr(usize)]
            #[derive(Clone, Copy)]
            #[allow(clippy::enum_variant_names, reason = "functions keep their names")]
            pub enum Index { $( $name, )* $( $call, )* Count }

            const COUNT: usize = Index::Count as usize;

            /// The symbols as one text, each followed by a NUL. An array of pointers would cost
            /// relocations in every program.
            const SYMBOLS: &str = concat!(
                $( stringify!($name), "\0", )*
                $( stringify!($call), "\0", )*
            );

            /// The symbols as separate strings, for use at compile time.
            pub const NAMES: [&CStr; COUNT] = split(SYMBOLS);

            /// The addresses of the functions. Null before the library is loaded, and for functions
            /// that it lacks.
            pub static ADDRESSES: [AtomicPtr<c_void>; COUNT] =
                [const { AtomicPtr::new(null_mut()) }; COUNT];

            /// The real library, CUDA or NVML.
            pub static $library: Library = Library::new($soname, SYMBOLS, &ADDRESSES);

            /// The calls as the program has made them, outside of hooks: without a mark that the
            /// program may run during the call.
            pub mod straight {
                use super::*;
                functions!(
                    @real false, $library, $missing,
                    $( $name ( $($arg : $ty),* ) as ( $($($way)+)? ) ; )*
                );
            }

            /// The straight calls of the functions that are `as gate`, `as quick` and `as hot`,
            /// with the mark in the gate, where nothing else is to be done. `None`: nothing is
            /// done.
            pub mod at_once {
                #[allow(unused_imports, reason = "NVML has no such function")]
                use super::*;
                $( functions!(@at_once ( $($($way)+)? ) $name ( $($arg : $ty),* )); )*
            }

            // Only CUDA calls the program. NVML calls some of its own functions by their exported
            // names.
            const VISITS: bool = matches!(stringify!($module).as_bytes(), b"cuda");

            functions!(@visit $( $name ( $($arg : $ty),* ) ; )*);
            functions!(
                @real VISITS, $library, $missing, $( $call ( $($carg : $cty),* ) as () ; )*
            );

            /// For each driver function, a function of the same name that returns whether this
            /// driver has it.
            #[allow(dead_code)]
            pub mod has {
                use super::*;
                $( pub fn $name() -> bool { !$library.address(Index::$name as usize).is_null() } )*
                $( pub fn $call() -> bool { !$library.address(Index::$call as usize).is_null() } )*
            }
        }
    )* };

    (
        @real $visits:expr, $library:ident, $missing:expr,
        $( $name:ident ( $($arg:ident : $ty:ty),* ) as $ways:tt ; )*
    ) => { $(
        /// Calls the driver's own function of this name. Returns a fixed error when this driver
        /// lacks the function.
        #[inline(never)]
        #[allow(
            dead_code,
            reason = "gpulimit never calls some of the functions and only asks whether they exist"
        )]
        pub fn $name($($arg: $ty),*) -> Status {
            let address = &ADDRESSES[Index::$name as usize];
            let mut address = address.load(Ordering::Relaxed);
            if address.is_null() {
                address = $library.address(Index::$name as usize);
                if address.is_null() {
                    return $missing;
                }
            }
            let call = || functions!(@call address ( $($arg : $ty),* ));
            if $visits {
                return inside::visit(call);
            }
            match const { functions!(@gate $ways) } {
                Some(calls) => gate::pass(NAMES[Index::$name as usize], calls, call),
                None => call(),
            }
        }
    )* };

    (@visit $( $name:ident ( $($arg:ident : $ty:ty),* ) ; )*) => { $(
        /// Calls the driver's own function of this name for the library, or inside of a hook.
        #[inline]
        #[allow(
            dead_code,
            reason = "gpulimit never calls some of the functions and only asks whether they exist"
        )]
        pub fn $name($($arg: $ty),*) -> Status {
            let call = || straight::$name($($arg),*);
            if VISITS { inside::visit(call) } else { call() }
        }
    )* };

    (@call $address:ident ( $($arg:ident : $ty:ty),* )) => {
        // SAFETY: the address is that of this driver function, and the row has the types of
        // NVIDIA's header. Pointers come from the program or `Out::of`.
        unsafe {
            type Function = unsafe extern "C-unwind" fn($($ty),*) -> Status;
            std::mem::transmute::<*mut std::ffi::c_void, Function>($address)($($arg),*)
        }
    };

    (@at_once ( gate ) $($function:tt)*) => { functions!(@at_once true, $($function)*); };
    (@at_once ( hot ) $($function:tt)*) => { functions!(@at_once false, $($function)*); };
    (@at_once ( quick ) $($function:tt)*) => { functions!(@at_once false, $($function)*); };
    (@at_once ( quick gated ) $($function:tt)*) => { functions!(@at_once true, $($function)*); };
    (@at_once $is_gated:literal, $name:ident ( $($arg:ident : $ty:ty),* )) => {
        #[inline(always)]
        pub fn $name($($arg: $ty),*) -> Option<(gate::AtOnce, impl FnOnce() -> Status)> {
            let address = ADDRESSES[Index::$name as usize].load(Ordering::Relaxed);
            if address.is_null() {
                return None;
            }
            let begun = gate::AtOnce::begin(NAMES[Index::$name as usize], $is_gated)?;
            Some((begun, move || functions!(@call address ( $($arg : $ty),* ))))
        }
    };
    (@at_once $ways:tt $name:ident $args:tt) => {};

    (@gate ( $(hot)? $(quick)? $(patched)? )) => { None::<Calls> };
    (@gate ( wait )) => { Some(Calls::Waits) };
    (@gate ( $($gated:ident)+ )) => { Some(Calls::Short) };
}

table!(functions);

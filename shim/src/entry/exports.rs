//! The exported functions of `libgpulimit.so` that programs call instead of the driver's functions,
//! made from the hook table.
#![allow(
    unsafe_code,
    reason = "the macro exports C functions under the names of the driver's functions"
)]

use crate::abi::*;
use crate::account::launched::is_recently_loaded as is_loaded;
use crate::driver::devices::have_memory;
use crate::entry::door::lookup;
use crate::handler::{
    array, capture, code, context, context_limits, external, gate, graph, graph_node, graph_update,
    green, handles, ipc, launch, lazy, linear, managed, measured, peer, pool, process_list,
    synchronize, view, vmm,
};
use crate::table::table;

/// Makes the exported C function of each hooked function, and each library's table rows as data.
macro_rules! exports {
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
            use crate::driver::$module as driver;
            use crate::entry::door::Hooked;
            use crate::hook::{Class, Row};

            /// The rows of the hooked functions, in the order of `driver::NAMES`.
            static ROWS: [Row; [$( stringify!($name) ),*].len()] = [ $( Row {
                symbol: driver::NAMES[driver::Index::$name as usize],
                hash: crate::entry::door::hash(driver::NAMES[driver::Index::$name as usize]),
                class: Class::$class,
                broken: $broken,
                hook: exports::$name as *const std::ffi::c_void,
            }, )* ];

            /// The driver's library together with its hooks.
            pub static $library: Hooked = Hooked::new(&driver::$library, &ROWS);

            /// The exported functions, to which the dynamic linker binds programs.
            mod exports {
                use super::*;
                $( exports!(
                    @export $name ( $($arg : $ty),* ) => $handler $(, as $($way)+)?
                    $(, given ( $($given),* ))? $(, first $first)? $(, unless $known : $handle)?
                    $(, known by $register $launched)?
                ); )*
            }
        }
    )* };

    (
        @export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path
        $(, as gated)? $(, given $given:tt)? $(, unless $known:path : $handle:ident)?
    ) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            // Where the check of `unless CHECK` is true, the call skips the re-entrancy guard.
            #[allow(unused_variables)]
            let real = || driver::straight::$name($($arg),*);
            $( if $known($handle) { return real(); } )?
            exports!(@enter $name ( $($arg : $ty),* ) => $handler $(, given $given)?)
        }
    };

    (@export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path, as gate) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            let visit = || crate::hook::visit(|| driver::straight::$name($($arg),*));
            match driver::at_once::$name($($arg),*) {
                Some((begun, call)) => begun.run(call),
                None => $handler(visit),
            }
        }
    };

    (
        @export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path,
        as quick, first $first:path
    ) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            #[inline(never)]
            fn others($($arg: $ty),*) -> Status {
                exports!(@enter $name ( $($arg : $ty),* ) => $handler)
            }
            let begin = || driver::at_once::$name($($arg),*);
            $first(begin, $($arg),*).unwrap_or_else(|| others($($arg),*))
        }
    };

    (
        @export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path,
        as quick gated, first $first:path
    ) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            #[inline(never)]
            fn others(made: Option<pool::Made>, $($arg: $ty),*) -> Status {
                let row = const { &ROWS[driver::Index::$name as usize] };
                let real = driver::$name as fn($($ty),*) -> Status;
                crate::hook::enter(row, move |call: Option<crate::hook::Entered<'_>>| match call {
                    Some((call, _)) => $handler(call, real, made, $($arg),*),
                    None => match made {
                        Some(made) => made.status,
                        None => driver::straight::$name($($arg),*),
                    },
                })
            }
            let begin = || driver::at_once::$name($($arg),*);
            $first(begin, $($arg),*).unwrap_or_else(|made| others(made, $($arg),*))
        }
    };

    (
        @export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path,
        as hot, first $first:path
    ) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            #[inline(never)]
            fn others(made: Option<linear::Made>, $($arg: $ty),*) -> Status {
                crate::hook::run(
                    const { &ROWS[driver::Index::$name as usize] },
                    false,
                    || match made {
                        Some(made) => made.status,
                        None => driver::straight::$name($($arg),*),
                    },
                    |call| {
                        let real = |$($arg: $ty),*| driver::$name($($arg),*);
                        $handler(call, real, made, $($arg),*)
                    },
                )
            }
            let begin = || driver::at_once::$name($($arg),*);
            $first(begin, $($arg),*).unwrap_or_else(|made| others(made, $($arg),*))
        }
    };

    (@export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path, as wait) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            let status = crate::hook::visit(|| driver::straight::$name($($arg),*));
            crate::hook::after(const { &ROWS[driver::Index::$name as usize] }, status, $handler)
        }
    };

    (
        @enter $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path $(, given $given:tt)?
    ) => {{
        // This tail call leaves no stack frame.
        if crate::account::limited::unlimited() {
            return driver::straight::$name($($arg),*);
        }
        let row = const { &ROWS[driver::Index::$name as usize] };
        crate::hook::enter(row, move |call: Option<crate::hook::Entered<'_>>| match call {
            Some((call, real)) => exports!(
                @handle call, real, $name ( $($arg : $ty),* ) => $handler $(, given $given)?
            ),
            None => driver::straight::$name($($arg),*),
        })
    }};

    (
        @handle $call:ident, $real:ident,
        $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path
    ) => {
        // Passes a function pointer instead of a closure, so that driver functions with the same
        // signature share one compiled handler.
        {
            let _ = $real;
            $handler($call, driver::$name as fn($($ty),*) -> Status, $($arg),*)
        }
    };

    (
        @handle $call:ident, $real:ident,
        $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path, given ( $($given:ident),* )
    ) => {
        $handler($call, $real, $($given),*)
    };

    (
        @naked $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path $(, given $given:tt)?;
        $body:ident ( $($before:tt)* )
    ) => {
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
            extern "C-unwind" fn others($($arg: $ty),*) -> Status {
                exports!(@enter $name ( $($arg : $ty),* ) => $handler $(, given $given)?)
            }
            crate::hook::$body!($($before)* others)
        }
    };

    (
        @export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path,
        as patched $(gated)? $(, given $given:tt)?
    ) => {
        exports!(@naked $name ( $($arg : $ty),* ) => $handler $(, given $given)?; movable());

        #[cfg(not(target_arch = "x86_64"))]
        exports!(@export $name ( $($arg : $ty),* ) => $handler $(, given $given)?);
    };

    (
        @export $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path $(, given $given:tt)?,
        known by $register:ident $launched:ident
    ) => {
        exports!(
            @naked $name ( $($arg : $ty),* ) => $handler $(, given $given)?;
            pass($register, driver::ADDRESSES, driver::Index::$name as usize,)
        );

        #[cfg(not(target_arch = "x86_64"))]
        exports!(
            @export $name ( $($arg : $ty),* ) => $handler $(, given $given)?,
            unless crate::account::launched::is_recent : $launched
        );
    };}

table!(exports);

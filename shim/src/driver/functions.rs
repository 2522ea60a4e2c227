//! The driver's functions, as the hook table lists them: a typed call of each.
#![allow(
    unsafe_code,
    reason = "the calls that the macro makes; its SAFETY lines are here"
)]

use std::ffi::CStr;

use crate::abi::*;
use crate::table::table;

/// The strings of a text, of which each is ended by a NUL.
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

/// For each library of the table the names to resolve, their addresses, and a function for each of
/// them.
macro_rules! functions {
    (
        $( $(#[$doc:meta])* library $module:ident (
            $library:ident, $soname:literal, missing = $missing:expr, broken = $broken:expr
        ) {
            hooks { $(
                $class:ident $name:ident ( $($arg:ident : $ty:ty),* ) => $handler:path
                $(, as $way:ident)? $(, given ( $($given:ident),* ))?
                $(, unless $known:path : $handle:ident)?
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

            /// The place of each function in the lists below, the hooked ones first.
            #[repr(usize)]
            #[derive(Clone, Copy)]
            pub enum Index { $( $name, )* $( $call, )* Count }

            const COUNT: usize = Index::Count as usize;

            /// The symbols, each ended by a NUL: one text, as a list of pointers is relocated word
            /// by word in every program.
            const SYMBOLS: &str = concat!($( stringify!($name), "\0", )* $( stringify!($call), "\0", )*);

            /// The same one by one, for what is made from it at compile time.
            pub const NAMES: [&CStr; COUNT] = split(SYMBOLS);

            /// Null until the library is there, and where it lacks the function.
            pub static ADDRESSES: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];

            /// The real library.
            pub static $library: Library = Library::new($soname, SYMBOLS, &ADDRESSES);

            functions!(@real inline(never), $library, $missing, $( $name ( $($arg : $ty),* ) ; )*);
            functions!(@real inline, $library, $missing, $( $call ( $($carg : $cty),* ) ; )*);

            /// Whether this driver has the function.
            #[allow(dead_code)]
            pub mod has {
                use super::*;
                $( pub fn $name() -> bool { !$library.address(Index::$name as usize).is_null() } )*
                $( pub fn $call() -> bool { !$library.address(Index::$call as usize).is_null() } )*
            }
        }
    )* };

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
            // SAFETY: the address is the driver's function of this name; the row's types are those
            // of its header. The pointers among the arguments come from the program's own call or
            // from `Out::of`.
            unsafe {
                let function: unsafe extern "C-unwind" fn($($ty),*) -> Status = std::mem::transmute(address);
                function($($arg),*)
            }
        }
    )* };
}

table!(functions);

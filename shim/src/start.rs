//! The start hook.
#![allow(unsafe_code)]

/// Runs when the library is loaded, in every program. Does nothing unless a limit is asked for.
#[cfg(not(test))]
extern "C" fn start() {
    let _ = std::panic::catch_unwind(crate::membership::at_start);
}

// What the `ctor` crate would make, without a crate in everybody's process.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

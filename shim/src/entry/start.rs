//! The functions that run when a program starts. The dynamic linker calls the start hook when it
//! loads `libgpulimit.so`. The runtimes of sanitizers call the others, which they find by name;
//! they prefer a program's own functions of these names.
#![cfg_attr(
    not(test),
    allow(
        unsafe_code,
        reason = "functions that the dynamic linker and the runtimes of sanitizers call"
    )
)]

#[cfg(not(test))]
use std::ffi::c_char;

#[cfg(not(test))]
ctor::declarative::ctor! {
    /// Runs at the start of every program. Acts only if a limit is set or another library hides the
    /// hooks.
    #[ctor(unsafe)]
    fn start() {
        let _ = std::panic::catch_unwind(|| {
            super::door::take_place();
            super::door::keep_variables_at_start();
            crate::membership::at_start();
        });
    }
}

/// Lets programs with AddressSanitizer start although its runtime is not the first library. The
/// library defines none of the functions that the runtime must be first for.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Keeps ThreadSanitizer from reporting races of the library, and of NVML that it calls, whose
/// locks it does not see.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn __tsan_default_suppressions() -> *const c_char {
    c"race:libgpulimit.so\nrace:libnvidia-ml.so".as_ptr()
}

//! The C library's own `dlsym`. The library's export of that name passes calls on to it, and the
//! driver's functions are found with it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlsym`. The assembly of the library's own `dlsym` export reads this variable.
pub static REAL: AtomicPtr<c_void> = AtomicPtr::new(fallback as *mut c_void);

/// The version of the symbol that every C library for this architecture has.
#[cfg(target_arch = "x86_64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.17";

unsafe extern "C" {
    // In glibc since 2.1; the libc crate does not declare it.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Stands in for `dlsym` until the real one is known, or for ever where it is not found: finds no
/// symbol.
extern "C" fn fallback(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Returns the C library's `dlsym`; looks for it at first use.
pub fn real() -> *mut c_void {
    if REAL.load(Ordering::Relaxed) == fallback as *mut c_void {
        let found = next_versioned(c"dlsym", DLSYM_VERSION);
        if !found.is_null() {
            know(found);
        }
    }
    REAL.load(Ordering::Relaxed)
}

/// Sets the C library's `dlsym`, for a process in which [`next_versioned`] does not find it.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// Returns `name` in this version from the libraries that come after this one: the C library's
/// function, or that of another preloaded library that wraps the versioned name. Null when there is
/// none.
pub fn next_versioned(name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: both arguments are NUL-terminated strings.
    unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
}

/// Looks up `name` in `handle` with the real `dlsym`; null when `handle` lacks it. Never call this
/// with `RTLD_NEXT`.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `real` returns the C library's dlsym or `fallback`, which has the same type; `name`
    // is NUL-terminated.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            std::mem::transmute(real());
        function(handle, name.as_ptr())
    }
}

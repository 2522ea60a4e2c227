//! The C library's own `dlsym`: what our export of that name goes on to, and what finds the
//! driver's functions.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlsym`. Read by the assembly of our export.
pub static REAL: AtomicPtr<c_void> = AtomicPtr::new(fallback as *mut c_void);

/// Base version of the symbol: present since the architecture exists, whatever the C library's age.
#[cfg(target_arch = "x86_64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.17";

unsafe extern "C" {
    // Since GLIBC_2.1; not in the libc crate.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Stands in until the real one is known, and for good where it cannot be found: nothing is found.
extern "C" fn fallback(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Returns the real one, which is looked for at first use.
pub fn real() -> *mut c_void {
    if REAL.load(Ordering::Relaxed) == fallback as *mut c_void {
        let found = next_versioned(c"dlsym", DLSYM_VERSION);
        if !found.is_null() {
            know(found);
        }
    }
    REAL.load(Ordering::Relaxed)
}

/// Remembers the C library's `dlsym` where [`next_versioned`] does not find it.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// `name` in this version, in the libraries after this one: the C library's, or another preload's
/// that wraps the versioned name. Null when it is not there.
pub fn next_versioned(name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated strings.
    unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
}

/// The real `dlsym` for `name` in `handle`; null when it is not there. Never for `RTLD_NEXT`.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `real` is the C library's dlsym (or `fallback`, of the same type), `name` is
    // NUL-terminated.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            std::mem::transmute(real());
        function(handle, name.as_ptr())
    }
}

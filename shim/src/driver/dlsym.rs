//! The C library's own `dlsym`, to which the `dlsym` of `libgpulimit.so` passes look-ups on.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of the C library's `dlsym`. The assembly code of the `dlsym` that `libgpulimit.so`
/// exports reads this variable.
pub static REAL: AtomicPtr<c_void> = AtomicPtr::new(fallback as *mut c_void);

/// The version of the symbol `dlsym` that every glibc for this processor architecture has.
#[cfg(target_arch = "x86_64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.17";

unsafe extern "C" {
    // glibc has had this function since version 2.1; the libc crate does not declare it.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// A `dlsym` that finds no symbol. Stands in for the C library's `dlsym` as long as its address is
/// unknown.
extern "C" fn fallback(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Returns the address of the C library's `dlsym`. The first call of this function looks the
/// address up.
pub fn real() -> *mut c_void {
    if REAL.load(Ordering::Relaxed) == fallback as *mut c_void {
        let found = next_versioned(c"dlsym", DLSYM_VERSION);
        if !found.is_null() {
            know(found);
        }
    }
    REAL.load(Ordering::Relaxed)
}

/// Sets the address of the C library's `dlsym` where [`next_versioned`] cannot find it.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// Returns the address of this symbol version in the libraries loaded after `libgpulimit.so`; null
/// when they lack it.
pub fn next_versioned(name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: both arguments are NUL-terminated strings.
    unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
}

/// Looks up `name` in the library `handle`; null when that library lacks it. Never pass
/// `RTLD_NEXT`.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `real` returns the C library's dlsym or `fallback`, which has the same type; `name`
    // is NUL-terminated.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            std::mem::transmute(real());
        function(handle, name.as_ptr())
    }
}

//! The next `dlsym`, to which the `dlsym` of `libgpulimit.so` passes look-ups on: that of a library
//! loaded after it that wraps `dlsym`, or else the C library's.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of the next `dlsym`. The assembly code of the `dlsym` that `libgpulimit.so`
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

type Function = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the address of the next `dlsym`. The first call of this function looks the address up.
pub fn real() -> *mut c_void {
    if REAL.load(Ordering::Relaxed) == fallback as *mut c_void {
        let found = next(c"dlsym");
        if !found.is_null() {
            know(found);
        }
    }
    REAL.load(Ordering::Relaxed)
}

/// Returns the address of this function in the libraries loaded after `libgpulimit.so`; null when
/// they lack it.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the strings are NUL-terminated, and a `dlsym` of this version has this type. Finds
    // only the C library's: `dlvsym` passes over functions without a version, as wrappers are.
    unsafe {
        let found = dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), DLSYM_VERSION.as_ptr());
        if found.is_null() {
            return found;
        }
        let next = std::mem::transmute::<*mut c_void, Function>(found);
        std::hint::black_box(next(libc::RTLD_NEXT, name.as_ptr()))
    }
}

/// Sets the address of the next `dlsym`.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// Looks up `name` in the library `handle`; null when that library lacks it.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `real` returns the C library's dlsym or `fallback`, which has the same type; `name`
    // is NUL-terminated.
    unsafe { std::mem::transmute::<*mut c_void, Function>(real())(handle, name.as_ptr()) }
}

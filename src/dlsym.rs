//! The `dlsym` of the controller. It replaces the `dlsym` of libgpulimit.so in this program.
//!
//! /etc/ld.so.preload loads libgpulimit.so into every program, including the controller. With this
//! function, the controller gets NVML's own functions and not the hooks. It then sees the whole
//! machine, and is never a member of a group.
//!
//! This opens no new way around a limit: any program could find the driver's functions without
//! `dlsym`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::sync::OnceLock;

/// The version that glibc gives to the symbol `dlsym` on this processor architecture.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const VERSION: &CStr = c"GLIBC_2.17";

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    // glibc has `dlvsym` from version 2.1 on, but the libc crate does not declare it.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

// Hides this function from shared libraries. They must call the C library's `dlsym` directly: with
// `RTLD_NEXT`, the result of `dlsym` depends on the address of the caller.
std::arch::global_asm!(".hidden dlsym");

/// Looks up a symbol with the C library's `dlsym`. Returns null if the symbol does not exist.
///
/// # Safety
/// The caller must fulfil the requirements of the C library's `dlsym`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static REAL: OnceLock<Option<Dlsym>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: both strings end with a NUL. `libgpulimit.so` exports no symbol of this version.
        // The function found is therefore the C library's `dlsym`, which has this type.
        unsafe {
            let found = dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr());
            mem::transmute::<*mut c_void, Option<Dlsym>>(found)
        }
    });
    match real {
        // SAFETY: the caller fulfils the requirements of the C library's `dlsym`.
        Some(real) => unsafe { real(handle, name) },
        None => std::ptr::null_mut(),
    }
}

//! The `dlsym` of the controller, which replaces the `dlsym` of libgpulimit.so in this program.
//!
//! With its own `dlsym`, the controller gets NVML's functions instead of the hooks, and sees the
//! whole machine. This opens no new way around limits: programs can find the driver without
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

// Shared libraries must call the C library's `dlsym` directly, because results of `RTLD_NEXT`
// depend on the caller.
std::arch::global_asm!(".hidden dlsym");

/// Looks up a symbol with the C library's `dlsym`; null if missing.
///
/// # Safety
/// The C library's `dlsym` states the requirements.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static REAL: OnceLock<Option<Dlsym>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: both strings end with a NUL. Only the C library exports this version of `dlsym`,
        // with this type.
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

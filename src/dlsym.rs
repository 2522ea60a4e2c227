//! The `dlsym` of the controller. The linker prefers it to the `dlsym` of `libgpulimit.so`, which
//! /etc/ld.so.preload loads into every program: so the controller gets NVML's own functions instead
//! of the hooks, sees the machine instead of a group's view, and is never a member of a group.
//!
//! Other programs gain no memory from this: a program that looks for the driver's functions in
//! another way than by `dlsym` can do so without the controller.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::sync::OnceLock;

/// The version of the symbol `dlsym` that every glibc for this processor architecture has.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const VERSION: &CStr = c"GLIBC_2.17";

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    // glibc has had this function since version 2.1; the libc crate does not declare it.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

// Hides the function from shared libraries: `RTLD_NEXT` needs the address of its caller.
std::arch::global_asm!(".hidden dlsym");

/// Looks up a symbol with the C library's `dlsym`; null when there is none.
///
/// # Safety
/// The same as for the C library's `dlsym`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static REAL: OnceLock<Option<Dlsym>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: both strings end with a NUL. `libgpulimit.so` exports no symbol of this version,
        // so the C library's `dlsym` is found, which has this type.
        unsafe {
            let found = dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr());
            mem::transmute::<*mut c_void, Option<Dlsym>>(found)
        }
    });
    match real {
        // SAFETY: the caller promises what the C library's `dlsym` asks for.
        Some(real) => unsafe { real(handle, name) },
        None => std::ptr::null_mut(),
    }
}

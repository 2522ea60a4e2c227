//! The `dlopen` of `libgpulimit.so`, which jumps to the next `dlopen`: that of a library loaded
//! after it that wraps `dlopen`, or else the C library's.
//!
//! Before a library is opened with `RTLD_DEEPBIND`, gpulimit redirects the driver's symbols (see
//! [`super::redirect`]). Before the driver is opened, libraries that were loaded since the start
//! get their own variables back. The jump keeps the caller's return address, which decides the
//! search path.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::driver::dlsym::next;

/// The address of the next `dlopen`. The assembly code of gpulimit's `dlopen` reads it.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(fallback as *mut c_void);

/// Stands in for a `dlopen` that cannot be found in the C library: every call fails.
extern "C" fn fallback(_path: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}

/// Sets the address of the next `dlopen`.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// Runs before every `dlopen` of the process: redirects the driver's symbols where `flags` has
/// `RTLD_DEEPBIND`, and calls [`super::before_driver`] where `path` is the driver.
unsafe extern "C" fn prepare(path: *const c_char, flags: c_int) {
    if REAL.load(Ordering::Relaxed) == fallback as *mut c_void {
        let found = next(c"dlopen");
        if !found.is_null() {
            REAL.store(found, Ordering::Relaxed);
        }
    }
    if flags & libc::RTLD_DEEPBIND != 0 {
        let _ = std::panic::catch_unwind(super::before_deepbind);
    }
    // SAFETY: the caller of `dlopen` passes null or a C string.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let names = |path: &CStr, name: &[u8]| path.to_bytes().windows(name.len()).any(|w| w == name);
    if path.is_some_and(|it| names(it, b"libcuda.so") || names(it, b"libnvidia-ml.so")) {
        let _ = std::panic::catch_unwind(super::before_driver);
    }
}

/// The `dlopen` that `libgpulimit.so` exports.
///
/// # Safety
/// The same as for the C library's `dlopen`.
#[cfg(all(not(test), target_arch = "x86_64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8", // 16-byte alignment at the call
        "call {prepare}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp qword ptr [rip + {real}]",
        prepare = sym prepare,
        real = sym REAL,
    )
}

/// The `dlopen` that `libgpulimit.so` exports.
///
/// # Safety
/// The same as for the C library's `dlopen`.
#[cfg(all(not(test), target_arch = "aarch64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "hint #34", // bti c
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {prepare}",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {real}",
        "ldr x16, [x16, #:lo12:{real}]",
        "br x16",
        prepare = sym prepare,
        real = sym REAL,
    )
}

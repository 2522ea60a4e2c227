//! The `dlopen` of `libgpulimit.so`: a naked function that jumps to the C library's `dlopen`.
//!
//! The dynamic linker binds a library that is opened with `RTLD_DEEPBIND` to its own dependencies
//! first: to libcuda instead of the hooks, and to the C library's `dlsym` instead of gpulimit's. So
//! gpulimit changes the driver's symbol table before such a library is loaded (see
//! [`super::redirect`]). Then gpulimit's `dlopen` jumps to the C library's `dlopen` and leaves the
//! program's return address in place. By that address the C library finds the caller's search path.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::driver::dlsym::next_versioned;

/// The address of the C library's `dlopen`. The assembly code of gpulimit's `dlopen` reads it.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(fallback as *mut c_void);

#[cfg(target_arch = "x86_64")]
const DLOPEN_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const DLOPEN_VERSION: &CStr = c"GLIBC_2.17";

/// Stands in for the C library's `dlopen` in a process where that function cannot be found. Every
/// `dlopen` of such a process fails.
extern "C" fn fallback(_path: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}

/// Stores the address of the C library's `dlopen`. The start hook calls this if the linker searches
/// other libraries before `libgpulimit.so`: [`next_versioned`] does not search those libraries.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// Runs before every `dlopen` of the process: redirects the driver's symbols where `flags` has
/// `RTLD_DEEPBIND`.
unsafe extern "C" fn prepare(_path: *const c_char, flags: c_int) {
    if REAL.load(Ordering::Relaxed) == fallback as *mut c_void {
        let found = next_versioned(c"dlopen", DLOPEN_VERSION);
        if !found.is_null() {
            REAL.store(found, Ordering::Relaxed);
        }
    }
    if flags & libc::RTLD_DEEPBIND != 0 {
        let _ = std::panic::catch_unwind(super::before_deepbind);
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

//! `dlsym`, as a naked tail jump.
//!
//! The real `dlsym` looks at its return address to know who asks (`RTLD_NEXT`, namespaces). So our
//! export never calls it on behalf of the program: it asks [`decide`] whether the answer is a hook,
//! and otherwise jumps on with all registers as they came.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

#[cfg(not(test))]
use crate::driver::dlsym::REAL;
use crate::driver::dlsym::{real, real_dlsym};

/// Address of our hook when `name` in `handle` is a hooked function of the driver, else null ("let
/// the real one answer").
///
/// Runs before constructors, inside allocators and in forked children: for foreign names it looks
/// at a few bytes and nothing else.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> *const c_void {
    let _ = real();
    if handle.is_null() || name.is_null() {
        // RTLD_DEFAULT finds our exports by itself.
        return std::ptr::null();
    }
    // SAFETY: the program passes a NUL-terminated string; reading stops at the first mismatch, so
    // at the NUL at the latest.
    let byte = |at: usize| unsafe { *name.add(at) } as u8;
    let ours = match byte(0) {
        b'c' => byte(1) == b'u' && byte(2).is_ascii_uppercase(),
        b'n' => byte(1) == b'v' && byte(2) == b'm' && byte(3) == b'l',
        _ => false,
    };
    if !ours {
        return std::ptr::null();
    }
    if handle == libc::RTLD_NEXT {
        // Only the real one knows the caller, and may find the driver from there.
        let _ = std::panic::catch_unwind(super::before_next);
        return std::ptr::null();
    }
    // SAFETY: as above.
    let found = real_dlsym(handle, unsafe { CStr::from_ptr(name) });
    if found.is_null() {
        return std::ptr::null();
    }
    let translated = std::panic::catch_unwind(|| super::translate(found)).unwrap_or(None);
    translated.unwrap_or(std::ptr::null())
}

/// `dlsym` of the preloaded library.
///
/// # Safety
/// As the C library's.
#[cfg(all(not(test), target_arch = "x86_64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8", // 16-byte alignment at the call
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        decide = sym decide,
        real = sym REAL,
    )
}

/// `dlsym` of the preloaded library.
///
/// # Safety
/// As the C library's.
#[cfg(all(not(test), target_arch = "aarch64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "hint #34", // bti c
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {decide}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "mov x0, x16",
        "ret",
        "2:",
        "adrp x16, {real}",
        "ldr x16, [x16, #:lo12:{real}]",
        "br x16",
        decide = sym decide,
        real = sym REAL,
    )
}

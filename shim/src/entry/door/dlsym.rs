//! The `dlsym` of this library: a naked function that jumps to the C library's.
//!
//! The C library's `dlsym` uses its return address to identify the caller (for `RTLD_NEXT` and
//! namespaces), so this library must not call it on behalf of the program. The export asks
//! [`decide`] whether the answer is a hook; otherwise it jumps on with all registers unchanged.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

#[cfg(not(test))]
use crate::driver::dlsym::REAL;
use crate::driver::dlsym::{real, real_dlsym};

/// Returns the address of the hook if `name` in `handle` is a hooked function of the driver; null
/// if the C library's `dlsym` is to answer.
///
/// Runs before constructors, inside allocators and in forked children. So it reads only the first
/// bytes of a name that cannot be the driver's, and does nothing else for it.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> *const c_void {
    let _ = real();
    if handle.is_null() || name.is_null() {
        // With RTLD_DEFAULT the C library's `dlsym` finds the exports of this library by itself.
        return std::ptr::null();
    }
    // SAFETY: the program passes a NUL-terminated string. Reading stops at the first byte that
    // differs, so at the NUL at the latest.
    let byte = |at: usize| unsafe { *name.add(at) } as u8;
    let may_be_hooked = match byte(0) {
        b'c' => byte(1) == b'u' && byte(2).is_ascii_uppercase(),
        b'n' => byte(1) == b'v' && byte(2) == b'm' && byte(3) == b'l',
        _ => false,
    };
    if !may_be_hooked {
        return std::ptr::null();
    }
    if handle == libc::RTLD_NEXT {
        // Only the C library's `dlsym` knows the caller. Its search may find the driver after the
        // caller.
        let _ = std::panic::catch_unwind(super::before_next);
        return std::ptr::null();
    }
    // SAFETY: the program passes a NUL-terminated string.
    let found = real_dlsym(handle, unsafe { CStr::from_ptr(name) });
    if found.is_null() {
        return std::ptr::null();
    }
    let translated = std::panic::catch_unwind(|| super::translate(found)).unwrap_or(None);
    translated.unwrap_or(std::ptr::null())
}

/// The `dlsym` of this library.
///
/// # Safety
/// The same as for the C library's `dlsym`.
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

/// The `dlsym` of this library.
///
/// # Safety
/// The same as for the C library's `dlsym`.
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

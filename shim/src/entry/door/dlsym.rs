//! The `dlsym` of `libgpulimit.so`, which returns a hook or jumps to the C library's `dlsym`.
//!
//! The C library identifies the caller by the return address, so gpulimit jumps instead of calling.
//! [`decide`] chooses between hook and jump.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

#[cfg(not(test))]
use crate::driver::dlsym::REAL;
use crate::driver::dlsym::{real, real_dlsym};

/// Returns the hook's address for a hooked driver function; null if the C library must answer.
///
/// Callers can be constructors, allocators and forked children, so other names are dismissed by
/// their first bytes.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> *const c_void {
    let _ = real();
    if handle.is_null() || name.is_null() {
        // With `RTLD_DEFAULT` the C library's `dlsym` finds the exports of `libgpulimit.so` by
        // itself.
        return std::ptr::null();
    }
    // SAFETY: the program passes a NUL-terminated string, and reading stops at the first byte that
    // differs.
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
        // Only the C library knows where this search begins. The search can find the driver, so
        // redirect the driver's symbols.
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

/// The `dlsym` that `libgpulimit.so` exports.
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

/// The `dlsym` that `libgpulimit.so` exports.
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

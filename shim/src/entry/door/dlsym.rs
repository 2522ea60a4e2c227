//! The `dlsym` of `libgpulimit.so`: a naked function that returns a hook or jumps to the C
//! library's `dlsym`.
//!
//! The C library's `dlsym` identifies its caller by the return address, because the results of
//! `RTLD_NEXT` and of linker namespaces depend on the caller. So gpulimit must not call it on
//! behalf of the program. Instead gpulimit's `dlsym` asks [`decide`] for the address of a hook.
//! Where `decide` returns null, gpulimit's `dlsym` jumps to the C library's `dlsym`, with all
//! argument registers unchanged.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

#[cfg(not(test))]
use crate::driver::dlsym::REAL;
use crate::driver::dlsym::{real, real_dlsym};

/// Returns the address of the hook if `name` in `handle` is a hooked function of the driver; null
/// if the C library's `dlsym` must answer.
///
/// The program can call `dlsym` before constructors run, inside an allocator, or in a forked child.
/// So this function reads only the first bytes of a name that cannot belong to the driver.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> *const c_void {
    let _ = real();
    if handle.is_null() || name.is_null() {
        // With `RTLD_DEFAULT` the C library's `dlsym` finds the exports of `libgpulimit.so` by
        // itself.
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
        // Only the C library's `dlsym` can tell where a search with `RTLD_NEXT` begins. That search
        // can find the driver's function, so the driver's symbols are redirected first.
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

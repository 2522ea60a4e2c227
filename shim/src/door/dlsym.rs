//! `dlsym`, as a naked tail jump.
//!
//! The real `dlsym` looks at its return address to know who asks (`RTLD_NEXT`, namespaces). So our export never calls it on behalf of
//! the program: it asks [`decide`] whether the answer is a hook, and otherwise jumps on with all registers as they came.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlsym`. Read by the assembly below.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(fallback as *mut c_void);

/// Base version of the symbol: present since the architecture exists, whatever the C library's age.
#[cfg(target_arch = "x86_64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.17";

unsafe extern "C" {
    // Since GLIBC_2.1; not in the libc crate.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Stands in until the real one is known, and for good where it cannot be found: nothing is found.
extern "C" fn fallback(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

fn real() -> *mut c_void {
    let known = REAL.load(Ordering::Relaxed);
    if known != fallback as *mut c_void {
        return known;
    }
    let found = next_versioned(c"dlsym", DLSYM_VERSION);
    if !found.is_null() {
        REAL.store(found, Ordering::Relaxed);
        return found;
    }
    known
}

/// Remembers the C library's `dlsym` where [`next_versioned`] does not find it.
pub fn know(real: *const c_void) {
    REAL.store(real.cast_mut(), Ordering::Relaxed);
}

/// `name` in this version, in the libraries after this one: the C library's, or another preload's that wraps the versioned name. Null when it
/// is not there.
pub fn next_versioned(name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated strings.
    unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
}

/// The real `dlsym` for `name` in `handle`; null when it is not there. Never for `RTLD_NEXT`.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `real` is the C library's dlsym (or `fallback`, of the same type), `name` is NUL-terminated.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            std::mem::transmute(real());
        function(handle, name.as_ptr())
    }
}

/// Address of our hook when `name` in `handle` is a hooked function of the driver, else null ("let the real one answer").
///
/// Runs before constructors, inside allocators and in forked children: for foreign names it looks at a few bytes and nothing else.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> *const c_void {
    let _ = real();
    if handle.is_null() || name.is_null() {
        // RTLD_DEFAULT finds our exports by itself.
        return std::ptr::null();
    }
    // SAFETY: the program passes a NUL-terminated string; reading stops at the first mismatch, so at the NUL at the latest.
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

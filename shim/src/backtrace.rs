//! Keeps the code that prints backtraces out of `libgpulimit.so`, because it would be a quarter of
//! the library.
//!
//! `std` finds stack frames with `_Unwind_Backtrace`. The function of that name in this file finds
//! no frame. So the optimiser drops the printing code.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

/// The unwinder's record of a stack frame.
enum Context {}

unsafe extern "C" {
    fn _Unwind_GetIP(context: *mut Context) -> usize;
}

std::arch::global_asm!(
    ".hidden _Unwind_Backtrace",
    ".hidden _Unwind_GetIPInfo",
    ".hidden _Unwind_GetTextRelBase",
    ".hidden _Unwind_GetDataRelBase",
);

/// `_URC_END_OF_STACK`
const END_OF_STACK: c_int = 5;

/// Tells the caller, which is `std`, that the stack has no frames. So `std` prints no backtrace.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_each: *const c_void, _data: *mut c_void) -> c_int {
    END_OF_STACK
}

// LLVM's unwinder has these four functions in one object file. Defining all four keeps that object
// file out.

/// Returns the return address of a stack frame.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetIPInfo(context: *mut Context, at_instruction: *mut c_int) -> usize {
    // SAFETY: the personality function passes its own variable and the context that it was called
    // with.
    unsafe {
        at_instruction.write(0);
        _Unwind_GetIP(context)
    }
}

/// Returns the base of text-relative entries in unwind tables: always 0 on the supported
/// architectures.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetTextRelBase(_context: *mut Context) -> usize {
    0
}

/// Returns the base of data-relative entries in unwind tables: always 0 on the supported
/// architectures.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetDataRelBase(_context: *mut Context) -> usize {
    0
}

//! Keeps the code that prints backtraces out of `libgpulimit.so`. A panic still reports its source
//! line and its message.
//!
//! `std` prints a backtrace with a panic where `RUST_BACKTRACE` asks for it. The code for this
//! would be a quarter of the library, and stable Rust has no switch to leave it out. `std` finds
//! the stack frames by calling `_Unwind_Backtrace`. This file defines a function of that name that
//! finds no frame. The optimiser then drops all code that handles frames.
//!
//! The unwinder functions in this file are hidden symbols, so the program and other libraries keep
//! their own unwinder.
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

// Portable builds use LLVM's unwinder, which has `_Unwind_Backtrace` and the next three functions
// in one object file. This file defines all four, so that the linker takes nothing from that object
// file.

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

/// Returns the base of text-relative entries in unwind tables: 0, because on the supported
/// architectures entries are relative to their own address.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetTextRelBase(_context: *mut Context) -> usize {
    0
}

/// Returns the base of data-relative entries in unwind tables: 0, because on the supported
/// architectures entries are relative to their own address.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetDataRelBase(_context: *mut Context) -> usize {
    0
}

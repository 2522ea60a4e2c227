//! No backtraces of our own. A panic of ours still says where it was and why.
//!
//! `std` prints one with a panic where `RUST_BACKTRACE` asks for it, and what it needs for that
//! (readers of ELF, DWARF and compressed sections, demangling) is a quarter of the library in every
//! process, which stable Rust has no switch for. It finds frames by one call into the unwinder.
//! Here that finds none, where the optimiser sees it, and so all of the rest is never reached and
//! left out.
//!
//! Nobody else is to see this: the symbols are hidden, and programs and other libraries have the
//! unwinder that they had.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

/// What the unwinder tells of a frame, to those whom it asks.
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

/// The end of the stack, at once.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_each: *const c_void, _data: *mut c_void) -> c_int {
    END_OF_STACK
}

// LLVM's unwinder, which is in the portable builds, has what a panic needs of these in one object
// with the above. With them here the linker takes nothing of that object.

/// Where a frame is in its function, by the return address.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetIPInfo(context: *mut Context, at_instruction: *mut c_int) -> usize {
    // SAFETY: the personality function's own variable, and the context that it was called with.
    unsafe {
        at_instruction.write(0);
        _Unwind_GetIP(context)
    }
}

/// What tables are relative to: on our architectures they are relative to themselves.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetTextRelBase(_context: *mut Context) -> usize {
    0
}

/// As above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetDataRelBase(_context: *mut Context) -> usize {
    0
}

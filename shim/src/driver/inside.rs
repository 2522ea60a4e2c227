//! Where this thread is: outside of hooks, in the library's own code, or in a call of CUDA that the
//! library makes. In such a call the program may run: a tool's callback, or a signal's handler.
//!
//! One word of each thread says it: the address of a word in the stack frame of the current hook,
//! with marks in its lowest bits. A second word belongs to the gate. `thread_local!` would call the
//! dynamic linker at each use.
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;

/// Marks a call of the driver that may run code of the program.
pub const DRIVER: usize = 1;
/// Marks a hook that the program has called inside of such a call.
pub const NESTED: usize = 2;
/// Marks that the thread holds a lock which hooks of pools and of graph memory take.
pub const CLOSED: usize = 4;
/// All marks.
pub const MARKS: usize = DRIVER | NESTED | CLOSED;

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".hidden gpulimit_inside",
    ".globl gpulimit_inside",
    ".type gpulimit_inside, @object",
    ".size gpulimit_inside, 16",
    "gpulimit_inside: .zero 16",
    ".popsection",
);

/// Returns the place of the thread's two words. That of the gate comes first.
#[inline(always)]
fn place() -> *mut usize {
    let place;
    // SAFETY: computes the address of this thread's word, and changes nothing.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + gpulimit_inside@GOTTPOFF]",
            out(reg) place, options(pure, nomem, nostack),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "mrs {1}, tpidr_el0",
            "adrp {0}, :gottprel:gpulimit_inside",
            "ldr {0}, [{0}, :gottprel_lo12:gpulimit_inside]",
            "add {0}, {0}, {1}",
            out(reg) place, out(reg) _, options(pure, nomem, nostack),
        );
    }
    place
}

/// Returns the word; 0 outside of hooks.
#[inline(always)]
pub fn get() -> usize {
    // SAFETY: the word is this thread's own, and lives as long as the thread.
    unsafe { place().add(1).read_volatile() }
}

/// Sets the word.
#[inline(always)]
pub fn set(word: usize) {
    // SAFETY: as in `get`.
    unsafe { place().add(1).write_volatile(word) }
}

/// Returns this thread's own word of the gate: see `Gate::enter`. Do not keep the reference.
#[inline(always)]
pub fn own() -> &'static AtomicU64 {
    // SAFETY: the word is this thread's own, and lives as long as the thread.
    unsafe { AtomicU64::from_ptr(place().cast()) }
}

/// Makes a call of the driver outside of a hook: calls that the program makes inside of it are
/// nested.
#[inline(always)]
pub fn outermost<T>(call: impl FnOnce() -> T) -> T {
    let mut word = MaybeUninit::<usize>::uninit();
    let here = word.as_mut_ptr().expose_provenance();
    // SAFETY: writes to a local variable. The volatile write is necessary, because `hook/guard.rs`
    // reads the variable by its address.
    unsafe { word.as_mut_ptr().write_volatile(here) };
    set(here | DRIVER);
    let result = call();
    set(0);
    result
}

#[inline(always)]
fn marked<T>(mark: usize, call: impl FnOnce() -> T) -> T {
    let before = get();
    set(before | mark);
    let result = call();
    set(before);
    result
}

/// Makes a call of the driver. The library's caller may hold locks, but none of one map.
#[inline(always)]
pub fn visit<T>(call: impl FnOnce() -> T) -> T {
    marked(DRIVER, call)
}

/// Calls the driver under a lock that hooks of pools and of graph memory take.
pub fn closed<T>(calls: impl FnOnce() -> T) -> T {
    marked(CLOSED, calls)
}

/// Returns whether the program has made this hooked call inside of another one. It takes no lock
/// that the outer call may hold, and waits for nothing.
#[inline]
pub fn is_nested() -> bool {
    get() & NESTED != 0
}

/// Returns whether the outer call holds a lock that hooks of pools and of graph memory take.
pub fn is_closed() -> bool {
    get() & CLOSED != 0
}

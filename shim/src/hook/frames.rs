//! Where on the stack a call of the program's into this library begins, whatever the frames of ours are since.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null;

/// What the unwinder shows of a frame.
enum Context {}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut Context, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

const GO_ON: c_int = 0;
const STOP: c_int = 4;

/// The stack pointer of whoever called into this library; 0 where that cannot be told. A walk over our own frames alone, each of which says how large it is.
pub fn start_of_ours() -> usize {
    let mut found = 0usize;
    // SAFETY: `look` writes to `found`, which outlives the call.
    unsafe { _Unwind_Backtrace(look, (&raw mut found).cast()) };
    found
}

extern "C" fn look(context: *mut Context, found: *mut c_void) -> c_int {
    // SAFETY: the unwinder's own context, valid during the call.
    let at = unsafe { _Unwind_GetIP(context) };
    if is_ours(at) {
        return GO_ON;
    }
    // SAFETY: as above; `found` comes from `start_of_ours`. Of a frame that has called, this is its stack pointer at the call.
    unsafe { found.cast::<usize>().write(_Unwind_GetCFA(context)) };
    STOP
}

/// Whether code at this address is of this library.
fn is_ours(at: usize) -> bool {
    let base = |address: *const c_void| {
        // SAFETY: plain data, for which zero is valid.
        let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked about.
        let known = unsafe { libc::dladdr(address, &raw mut about) } != 0;
        if known {
            about.dli_fbase.cast_const()
        } else {
            null()
        }
    };
    let own = base(is_ours as fn(usize) -> bool as *const c_void);
    !own.is_null() && base(std::ptr::without_provenance(at)) == own
}

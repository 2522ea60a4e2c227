//! Where on the stack a call of the program's into this library begins, whatever the frames of ours are since.
//!
//! All functions of ours begin their frames with the caller's frame pointer and the return address (`.cargo/config.toml`), so these
//! frames are a list that ends at the first return address which is not of ours.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ptr::{null, with_exposed_provenance};

/// The stack pointer of whoever called into this library (on aarch64 that at the end of the frame's record, which some of our caller's registers are above of);
/// 0 where this library was built without frame pointers.
#[inline(never)]
pub fn start_of_ours() -> usize {
    if !cfg!(frame_pointers) {
        return 0;
    }
    let mut frame: usize;
    // SAFETY: reads a register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    loop {
        // SAFETY: it is the record of a frame of ours: of this function first, then of who called from code of ours.
        let [before, from] = unsafe { with_exposed_provenance::<[usize; 2]>(frame).read() };
        if !is_ours(from) {
            return frame + size_of::<[usize; 2]>();
        }
        frame = before;
    }
}

/// Whether code at this address is of this library.
fn is_ours(at: usize) -> bool {
    let base = |address: *const std::ffi::c_void| {
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
    let own = base(is_ours as fn(usize) -> bool as *const std::ffi::c_void);
    !own.is_null() && base(std::ptr::without_provenance(at)) == own
}

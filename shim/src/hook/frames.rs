//! Where on the stack a call of the program's into this library begins, whatever the frames of ours
//! are since.
//!
//! All functions of ours begin their frames with the caller's frame pointer and the return address
//! (`.cargo/config.toml`), so these frames are a list that ends at the first return address which
//! is not of ours.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ptr::{null, with_exposed_provenance};

/// The stack pointer of whoever called into this library; 0 where this library was built without
/// frame pointers. On aarch64 the end of the first frame's record, which parts of that frame may be
/// above of: there a jump may go unnoticed, and nothing else.
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
    // Ends: whoever has called into this library first is not of it.
    loop {
        // SAFETY: it is the record of a frame of ours: of this function first, then of who called
        // from code of ours.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_void};
    use std::hint::black_box;
    use std::sync::Mutex;

    /// Where ours began in calls by the C library: as seen at once, from further down, and the
    /// place of a variable.
    static SEEN: Mutex<Option<[usize; 3]>> = Mutex::new(None);

    #[inline(never)]
    fn further_down(times: usize) -> usize {
        let room = black_box([0u8; 500]);
        let start = match times {
            0 => start_of_ours(),
            _ => further_down(times - 1),
        };
        black_box(room);
        start
    }

    extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
        let here = black_box(0u8);
        let seen = [start_of_ours(), further_down(5), (&raw const here).addr()];
        *SEEN.lock().expect("no panic") = Some(seen);
        0
    }

    #[test]
    fn ours_begin_where_another_library_calls() {
        let mut things = black_box([2u64, 1]);
        // SAFETY: two things of that size, and a function that compares such.
        unsafe { libc::qsort(things.as_mut_ptr().cast(), 2, 8, Some(compare)) };
        let outside = things.as_ptr().addr();
        let [at_once, from_further_down, here] = SEEN.lock().expect("no panic").expect("called");
        assert_eq!(at_once, from_further_down);
        assert!(at_once < outside, "{at_once:#x} {outside:#x}");
        // One frame, and a small one.
        assert!(at_once.abs_diff(here) < 500, "{here:#x} {at_once:#x}");
        if cfg!(target_arch = "x86_64") {
            assert!(here < at_once, "{here:#x} {at_once:#x}");
        }
    }
}

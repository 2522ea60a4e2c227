//! Finds the place on the stack where the program called into `libgpulimit.so`.
//!
//! All functions of `libgpulimit.so` begin their frames with the caller's frame pointer and the
//! return address (`.cargo/config.toml`). This linked list leads to the first return address
//! outside of the library.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ptr::{null, with_exposed_provenance};

/// Returns the stack pointer of the program's call into `libgpulimit.so`; 0 in a build without
/// frame pointers.
///
/// On aarch64, returns an address inside the first frame, so gpulimit can miss a jump out of a
/// hook.
#[inline(never)]
pub fn start_of_library_frames() -> usize {
    if !cfg!(frame_pointers) {
        return 0;
    }
    let mut frame: usize;
    // SAFETY: reads one register and changes nothing.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    // The loop always ends, because the program or another library has called into
    // `libgpulimit.so`.
    loop {
        // SAFETY: `frame` is the record of this function's frame, then of each caller in this
        // library. A record holds the caller's frame pointer and the return address.
        let [before, from] = unsafe { with_exposed_provenance::<[usize; 2]>(frame).read() };
        if !is_of_library(from) {
            return frame + size_of::<[usize; 2]>();
        }
        frame = before;
    }
}

/// Returns whether the code at the address `at` belongs to `libgpulimit.so`.
fn is_of_library(at: usize) -> bool {
    let base = |address: *const std::ffi::c_void| {
        // SAFETY: `Dl_info` is plain data, for which zero bytes are valid.
        let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `dladdr` accepts any address, and `about` is valid to write to.
        let known = unsafe { libc::dladdr(address, &raw mut about) } != 0;
        if known {
            about.dli_fbase.cast_const()
        } else {
            null()
        }
    };
    let own = base(is_of_library as fn(usize) -> bool as *const std::ffi::c_void);
    !own.is_null() && base(std::ptr::without_provenance(at)) == own
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_void};
    use std::hint::black_box;
    use std::sync::Mutex;

    /// Two results of `start_of_library_frames`, in a callback and further down the stack, and the
    /// address of the callback's local variable.
    static SEEN: Mutex<Option<[usize; 3]>> = Mutex::new(None);

    #[inline(never)]
    fn further_down(times: usize) -> usize {
        let room = black_box([0u8; 500]);
        let start = match times {
            0 => start_of_library_frames(),
            _ => further_down(times - 1),
        };
        black_box(room);
        start
    }

    extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
        let here = black_box(0u8);
        let seen = [
            start_of_library_frames(),
            further_down(5),
            (&raw const here).addr(),
        ];
        *SEEN.lock().expect("no panic") = Some(seen);
        0
    }

    #[test]
    fn library_frames_begin_where_another_library_calls() {
        let mut things = black_box([2u64, 1]);
        // SAFETY: the array has two items of 8 bytes, and `compare` compares two such items.
        unsafe { libc::qsort(things.as_mut_ptr().cast(), 2, 8, Some(compare)) };
        let outside = things.as_ptr().addr();
        let [at_once, from_further_down, here] = SEEN.lock().expect("no panic").expect("called");
        assert_eq!(at_once, from_further_down);
        assert!(at_once < outside, "{at_once:#x} {outside:#x}");
        // Only one small frame lies between the start of the frames and the local variable.
        assert!(at_once.abs_diff(here) < 500, "{here:#x} {at_once:#x}");
        if cfg!(target_arch = "x86_64") {
            assert!(here < at_once, "{here:#x} {at_once:#x}");
        }
    }
}

//! Threads that are cancelled (`pthread_cancel`) while they are in the driver. NVIDIA's is C, and is unwound; Rust ends the process. So
//! here they end behind the call.
#![allow(unsafe_code)]

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // Not in the libc crate.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As long as it lives, this thread is not ended.
pub struct Whole(c_int);

impl Whole {
    /// From here on.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Whole {
        let mut before = DISABLE;
        // SAFETY: changes a flag of this thread and writes the one that was before.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Whole(before)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: as above; the flag is one that was there.
        unsafe { pthread_setcancelstate(self.0, &mut ours) };
    }
}

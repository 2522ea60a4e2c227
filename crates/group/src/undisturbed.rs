//! Protection from `pthread_cancel` for work that must be finished.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

/// The value of `PTHREAD_CANCEL_DISABLE` in glibc and musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // The libc crate does not declare this function.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While this value lives, `pthread_cancel` does not end this thread.
///
/// A cancelled thread ends at its next cancellation point (a call that opens, reads, writes or
/// sleeps), by unwinding its stack. Rust code that catches panics then ends the whole process. So
/// code that makes such calls in the program's threads holds one of these values. The thread ends
/// at its first cancellation point after that.
pub struct Undisturbed {
    before: c_int,
    /// The state belongs to one thread, so the value stays in it.
    _here: PhantomData<*const ()>,
}

impl Undisturbed {
    /// Puts cancellation of this thread off.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let mut before = DISABLE;
        // SAFETY: the call changes a flag of this thread and writes the previous one into `before`.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self {
            before,
            _here: PhantomData,
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: as in `new`; `before` is the state that the same function returned.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

//! Work that a thread finishes although it is cancelled meanwhile.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE`, of glibc and musl alike.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // Not in the libc crate.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As long as it lives, `pthread_cancel` does not end this thread.
///
/// A thread that is cancelled ends at its next call of a certain kind (opening, reading, writing,
/// sleeping), by unwinding what it is in. Rust code ends the whole process then. So whatever makes
/// such calls in the program's threads holds one of these; the thread ends at its next call after
/// that.
pub struct Undisturbed {
    before: c_int,
    /// It is this thread's.
    _here: PhantomData<*const ()>,
}

impl Undisturbed {
    /// From here on.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let mut before = DISABLE;
        // SAFETY: changes a flag of this thread and writes the one that was before.
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
        // SAFETY: as above; `before` is what the same function gave.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

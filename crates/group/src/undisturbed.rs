//! Protects work that must be finished from `pthread_cancel`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

/// The value of `PTHREAD_CANCEL_DISABLE` in glibc and musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // The libc crate does not declare `pthread_setcancelstate`.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Keeps `pthread_cancel` from ending this thread until this value is dropped. Unwinding would end
/// the process at code that catches panics.
pub struct Undisturbed {
    before: c_int,
    /// Keeps the value from moving to another thread, because the cancellation state belongs to
    /// this thread.
    _here: PhantomData<*const ()>,
}

impl Undisturbed {
    /// Disables cancellation of this thread.
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
        // SAFETY: the call restores the state that `new` saved in `before`.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

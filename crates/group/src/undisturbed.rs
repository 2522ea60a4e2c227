//! Protects work that must be finished from `pthread_cancel`, and the program's `errno` from
//! gpulimit's work.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

/// The value of `PTHREAD_CANCEL_DISABLE` in glibc and musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // The libc crate does not declare `pthread_setcancelstate`.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Restores this thread's `errno` when it is dropped: gpulimit's locks, sleeps and looks change it.
pub struct Errno(c_int, PhantomData<*const ()>);

impl Errno {
    /// Keeps the present value.
    #[inline]
    pub fn keep() -> Self {
        // SAFETY: the address of the calling thread's errno is always valid.
        Self(unsafe { *libc::__errno_location() }, PhantomData)
    }
}

impl Drop for Errno {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `keep`. The value has not left its thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Keeps `pthread_cancel` from ending this thread until this value is dropped: what the frames of
/// the library hold would stay held. Keeps `errno`, too.
pub struct Undisturbed {
    before: c_int,
    /// Dropped last, and keeps the value from moving to another thread, because the cancellation
    /// state belongs to this thread.
    _errno: Errno,
}

impl Undisturbed {
    /// Disables cancellation of this thread.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let (mut before, _errno) = (DISABLE, Errno::keep());
        // SAFETY: the call changes a flag of this thread and writes the previous one into `before`.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before, _errno }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: the call restores the state that `new` saved in `before`.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Error;

    #[test]
    fn errno_is_restored() {
        let errno = || Error::last_os_error().raw_os_error();
        assert!(fs::read_dir("/proc/self/nothing").is_err());
        assert_eq!(errno(), Some(libc::ENOENT));
        let undisturbed = Undisturbed::new();
        assert!(fs::read_dir("/proc/self/stat").is_err());
        assert_eq!(errno(), Some(libc::ENOTDIR));
        drop(undisturbed);
        assert_eq!(errno(), Some(libc::ENOENT));
    }
}

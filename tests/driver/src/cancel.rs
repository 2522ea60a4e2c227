//! Cancellation of threads (`pthread_cancel`) in calls of the simulated driver.
//!
//! A cancelled thread ends in those calls of the real driver that open, read or wait, and is
//! unwound from there. Measured on an H200 (580.159): each call was made by a thread that had been
//! cancelled before the call and had the cancellation state enabled:
//!
//! | the thread ends in | and not in |
//! |---|---|
//! | `cuInit`, `cuCtxCreate`, `cuDevicePrimaryCtxRetain`, `cuCtxDestroy`, `cuModuleLoadData`, the first `cuMemAllocAsync` | `cuMemAlloc`, `cuMemFree`, later `cuMemAllocAsync`, `cuMemFreeAsync`, streams, launches, graphs, `cuMemCreate`, `cuMemMap`, `cuCtxSetLimit`, `cuMemAllocManaged`, `cuModuleUnload`, pools |
//! | with `CU_CTX_SCHED_BLOCKING_SYNC` and work under way also `cuCtxSynchronize`, `cuStreamSynchronize`, `cuEventSynchronize`, `cuMemFree`, `cuModuleUnload` | the same without that flag |
//!
//! In the simulated driver a cancelled thread ends at the beginning of such a call, before the call
//! does any work: unwinding a thread through Rust frames would abort the process. In a process with
//! blocking contexts the thread ends whether or not work is under way. Cancellation is disabled
//! while the rest of the call runs.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // The libc crate does not declare `pthread_setcancelstate`.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    // The libc crate does not declare `pthread_testcancel`.
    fn pthread_testcancel();
}

/// Whether a thread that waits for a context of this process sleeps (`CU_CTX_SCHED_BLOCKING_SYNC`).
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// Notes whether the flags of a new context make waiting threads sleep.
pub fn note_flags(flags: u32) {
    if flags & 7 == 4 {
        SLEEPS.store(true, Ordering::Relaxed);
    }
}

/// The condition under which a driver function is a cancellation point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Never.
    Never,
    /// Always.
    Always,
    /// In the first call of any function that the process makes.
    First,
    /// After the process has created a context whose waiting threads sleep.
    Waiting,
}

impl Point {
    /// Returns when the driver function with this name is a cancellation point.
    pub const fn of(name: &str) -> Point {
        if is(name, "cuInit")
            || is(name, "cuDevicePrimaryCtxRetain")
            || begins(name, "cuCtxCreate")
            || begins(name, "cuCtxDestroy")
            || begins(name, "cuModuleLoad")
        {
            return Point::Always;
        }
        if is(name, "cuMemAllocAsync") || is(name, "cuMemAllocAsync_ptsz") {
            return Point::First;
        }
        if is(name, "cuMemFree_v2")
            || is(name, "cuModuleUnload")
            || is(name, "cuEventSynchronize")
            || begins(name, "cuCtxSynchronize")
            || begins(name, "cuStreamSynchronize")
        {
            return Point::Waiting;
        }
        Point::Never
    }

    /// Ends the calling thread if it was cancelled and this driver function is a cancellation point
    /// now. The caller must not hold anything that needs clean-up.
    #[inline]
    pub fn pass(self) {
        static CALLED: AtomicBool = AtomicBool::new(false);
        let is_point = match self {
            Point::Never => false,
            Point::Always => true,
            Point::First => {
                !CALLED.load(Ordering::Relaxed) && !CALLED.swap(true, Ordering::Relaxed)
            }
            Point::Waiting => SLEEPS.load(Ordering::Relaxed),
        };
        if is_point {
            // SAFETY: the function takes no arguments. It may unwind the frames up to the exported
            // function; they hold nothing that needs to be dropped.
            unsafe { pthread_testcancel() };
        }
    }
}

const fn is(name: &str, other: &str) -> bool {
    name.len() == other.len() && begins(name, other)
}

const fn begins(name: &str, with: &str) -> bool {
    let (name, with) = (name.as_bytes(), with.as_bytes());
    let mut at = 0;
    while at < with.len() {
        if at >= name.len() || name[at] != with[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// A guard that disables cancellation of the calling thread until the guard is dropped.
pub struct Whole(c_int);

impl Whole {
    /// Disables cancellation of the calling thread.
    #[expect(clippy::new_without_default, reason = "it changes the thread's state")]
    pub fn new() -> Whole {
        let mut before = DISABLE;
        // SAFETY: the function changes a flag of this thread and writes its former value to
        // `before`, which is alive.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Whole(before)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let mut disabled = DISABLE;
        // SAFETY: `self.0` is the value that the function returned before; `disabled` is alive.
        unsafe { pthread_setcancelstate(self.0, &mut disabled) };
    }
}

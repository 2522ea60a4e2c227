//! Cancellation of threads (`pthread_cancel`) in calls of the simulated driver.
//!
//! A *cancellation point* is a driver call in which a cancelled thread ends. In the real driver,
//! calls that open or read a file or that wait are cancellation points. Measured on an H200
//! (580.159) with a thread that was already cancelled:
//!
//! | the thread ends in | the thread does not end in |
//! |---|---|
//! | `cuInit`, `cuCtxCreate`, `cuDevicePrimaryCtxRetain`, `cuCtxDestroy`, `cuModuleLoadData`, the first `cuMemAllocAsync` | `cuMemAlloc`, `cuMemFree`, later `cuMemAllocAsync`, `cuMemFreeAsync`, streams, launches, graphs, `cuMemCreate`, `cuMemMap`, `cuCtxSetLimit`, `cuMemAllocManaged`, `cuModuleUnload`, pools |
//! | `cuCtxSynchronize`, `cuStreamSynchronize`, `cuEventSynchronize`, `cuMemFree`, `cuModuleUnload`, while work is under way in a context with `CU_CTX_SCHED_BLOCKING_SYNC` | the same calls without that flag |
//!
//! In the simulated driver a cancelled thread ends at the beginning of the call. Cancellation is
//! disabled for the rest of the call, because unwinding through Rust frames aborts the process. The
//! second row applies once the process has made a context with the flag, even without work.
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

/// Whether this process has made a context with `CU_CTX_SCHED_BLOCKING_SYNC`. In calls that wait
/// for such a context, the waiting thread sleeps.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// Notes whether the flags of a new context contain `CU_CTX_SCHED_BLOCKING_SYNC`.
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
    /// The function is a cancellation point only the first time that the process calls it or its
    /// twin.
    First,
    /// The function is a cancellation point once the process has made a context with
    /// `CU_CTX_SCHED_BLOCKING_SYNC`.
    Waiting,
}

impl Point {
    /// Returns the condition under which the driver function with this name is a cancellation
    /// point.
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

    /// Ends the calling thread if it was cancelled and may end here. The caller must hold nothing
    /// that needs clean-up.
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
            // SAFETY: the function takes no arguments. The frames that it may unwind hold no values
            // that need a drop.
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
    #[expect(clippy::new_without_default, reason = "`new` disables cancellation")]
    pub fn new() -> Whole {
        let mut before = DISABLE;
        // SAFETY: the function changes a flag of this thread, and writes the flag's old value to
        // `before`.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Whole(before)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let mut disabled = DISABLE;
        // SAFETY: `self.0` is the flag's old value, which `new` has stored; `disabled` is alive.
        unsafe { pthread_setcancelstate(self.0, &mut disabled) };
    }
}

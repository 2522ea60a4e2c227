//! Threads that are cancelled (`pthread_cancel`) while they are in the driver.
//!
//! A cancelled thread ends in calls of the driver that open, read or wait, and is unwound from
//! there. Measured on an H200 (580.159), each call by a thread that was cancelled before it, with
//! the cancellation state enabled:
//!
//! | the thread ends in | and not in |
//! |---|---|
//! | `cuInit`, `cuCtxCreate`, `cuDevicePrimaryCtxRetain`, `cuCtxDestroy`, `cuModuleLoadData`, the first `cuMemAllocAsync` | `cuMemAlloc`, `cuMemFree`, later `cuMemAllocAsync`, `cuMemFreeAsync`, streams, launches, graphs, `cuMemCreate`, `cuMemMap`, `cuCtxSetLimit`, `cuMemAllocManaged`, `cuModuleUnload`, pools |
//! | with `CU_CTX_SCHED_BLOCKING_SYNC` and work under way also `cuCtxSynchronize`, `cuStreamSynchronize`, `cuEventSynchronize`, `cuMemFree`, `cuModuleUnload` | the same without that flag |
//!
//! Here a thread ends at the beginning of such a call, before it has done anything: Rust code that
//! is unwound by others ends the process. Where contexts sleep, it does so with and without work
//! under way. During the call cancellation is put off.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // Not in the libc crate.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    // Not in the libc crate.
    fn pthread_testcancel();
}

/// A context of this process sleeps while it waits.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// A context has these flags.
pub fn note_flags(flags: u32) {
    if flags & 7 == 4 {
        SLEEPS.store(true, Ordering::Relaxed);
    }
}

/// When a function is a cancellation point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Never.
    Never,
    /// Always.
    Always,
    /// In the first call of a process.
    First,
    /// Where a context of the process sleeps while it waits.
    Waiting,
}

impl Point {
    /// Of the function of this name.
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

    /// Ends the thread here if it is cancelled and this is a cancellation point. The caller has
    /// nothing to clean up.
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
            // SAFETY: has no arguments; the frames that it may unwind, up to the exported
            // function's, hold nothing.
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

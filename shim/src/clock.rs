//! Reads the monotonic clock without a system call.
#![allow(unsafe_code)]

/// Returns the time of the monotonic clock in milliseconds.
pub fn monotonic_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid `timespec` to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64).saturating_mul(1000) + (now.tv_nsec as u64) / 1_000_000
}

//! Time: the monotonic clock, read without a system call, and sleeping.
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

/// Sleeps for the time. Returns false if a signal handler has ended the sleep. A thread cannot be
/// cancelled here, unlike in the C library's function.
pub fn nap(time: std::time::Duration) -> bool {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let rest = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the kernel reads `time`, which outlives the call, and writes nothing.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, rest) == 0 }
}

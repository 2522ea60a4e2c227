//! Time: the clocks of the kernel, read without a system call, and sleeping.
//!
//! A preloaded library such as libfaketime shows the program other clocks, which may stand still or
//! jump. No wait of gpulimit depends on them: inside this library, also for `std`, `clock_gettime`
//! is the function of this file, which asks the kernel.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The kernel's function in the vDSO; null until it is found, and where there is none.
static KERNEL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the kernel's function by the C library's `dlsym`. Before, reading a clock takes a system
/// call.
pub fn find(dlsym: fn(*mut c_void, &CStr) -> *mut c_void) {
    let name = match cfg!(target_arch = "x86_64") {
        true => c"__vdso_clock_gettime",
        false => c"__kernel_clock_gettime",
    };
    let flags = libc::RTLD_NOLOAD | libc::RTLD_NOW;
    // SAFETY: the name is NUL-terminated; the vDSO is in every process, so nothing is loaded.
    let vdso = unsafe { libc::dlopen(c"linux-vdso.so.1".as_ptr(), flags) };
    if !vdso.is_null() {
        KERNEL.store(dlsym(vdso, name), Ordering::Relaxed);
    }
}

std::arch::global_asm!(".hidden clock_gettime");

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, now: *mut libc::timespec) -> c_int {
    let kernel = KERNEL.load(Ordering::Relaxed);
    // Both return 0: gpulimit and `std` ask for clocks that every kernel has.
    if kernel.is_null() {
        // SAFETY: the caller passes a valid `timespec` to write to.
        return unsafe {
            libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), now) as c_int
        };
    }
    type Function = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;
    // SAFETY: this is the vDSO's function of this type; the caller passes a valid `timespec`.
    unsafe { std::mem::transmute::<*mut c_void, Function>(kernel)(clock, now) }
}

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

//! Holds back the signals that a write sends to its own thread: of a pipe without a reader, of a
//! file at the largest size that the process may give it (`ulimit -f`), and of a terminal that is
//! another job's.
//!
//! Each of them ends a program that does not expect it. The write fails as well, and that is
//! enough: see [`during`].
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// Bytes of a signal set in the kernel.
const KERNEL_SET: usize = 8;

/// Runs `write` with these signals blocked in the calling thread, and takes the signal of a failed
/// write back. The program sees no signal but those that somebody else sends.
pub fn during<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let held = set(&[libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU]);
    let mut before = set(&[]);
    let mut pending = set(&[]);
    // SAFETY: reads and writes sets of this function.
    unsafe {
        libc::sigprocmask(libc::SIG_BLOCK, &raw const held, &raw mut before);
        libc::sigpending(&raw mut pending);
    }
    let written = write();
    let error = written.as_ref().err().and_then(io::Error::raw_os_error);
    let signal = match error {
        Some(libc::EPIPE) => libc::SIGPIPE,
        Some(libc::EFBIG) => libc::SIGXFSZ,
        _ => 0,
    };
    // SAFETY: as above; waits for no time for a signal that is blocked, and restores the mask.
    unsafe {
        // One that was pending before is the program's, and that of the write has become one with
        // it.
        if signal != 0 && libc::sigismember(&raw const pending, signal) == 0 {
            let (only, no_time) = (set(&[signal]), MaybeUninit::<libc::timespec>::zeroed());
            libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const only,
                null::<u8>(),
                no_time.as_ptr(),
                KERNEL_SET,
            );
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, null_mut());
    }
    written
}

/// What to do where a write failed because of a limit that [`during`] turns into an error; empty
/// for other errors.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => ": raise the limit on the size of files (`ulimit -f`)",
        _ => "",
    }
}

fn set(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: changes a set of this function, whose every bit pattern is one.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

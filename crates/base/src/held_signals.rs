//! Suppression of the signals that the kernel sends to a thread whose write fails:
//!
//! - SIGPIPE: the pipe has no reader.
//! - SIGXFSZ: the file reaches the size limit (`ulimit -f`).
//! - SIGTTOU: the terminal belongs to another job.
//!
//! These signals would end or stop the program. [`during`] suppresses them, because the error of
//! the write is enough for gpulimit.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// Size in bytes of the kernel's signal set, which `rt_sigtimedwait` expects as an argument.
const KERNEL_SET: usize = 8;

/// Runs `write` with SIGPIPE, SIGXFSZ and SIGTTOU blocked in the calling thread. Then discards the
/// signal that a failed `write` has raised.
pub fn during<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let held = set(&[libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU]);
    let mut before = set(&[]);
    let mut pending = set(&[]);
    // SAFETY: the calls read and write only signal sets on this function's stack.
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
    // SAFETY: the calls access only signal sets and a zero timeout on this stack. The old signal
    // mask is restored.
    unsafe {
        // A signal that was pending before the write belongs to the program and stays. The kernel
        // merges equal pending signals.
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

/// Returns advice for the user if a write failed because of the limit on file sizes, or because
/// the program sees a read-only file system; otherwise an empty text.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => ": raise the limit on the size of files (`ulimit -f`)",
        io::ErrorKind::ReadOnlyFilesystem => {
            ": this program may not write there; a systemd unit needs \
             `ReadWritePaths=-/run/gpulimit`, a sandbox or a container a writable mount of the \
             groups"
        }
        _ => "",
    }
}

fn set(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the calls change only this function's own set, for which every bit pattern is valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

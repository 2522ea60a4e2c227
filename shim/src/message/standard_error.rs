//! Writes to standard error without waiting and without a signal to the program.
//!
//! The open file can be shared with other processes, so gpulimit must not set its `O_NONBLOCK`
//! flag. Each kind of file has a call that returns at once:
//!
//! | file | call |
//! |---|---|
//! | socket | `sendto` with `MSG_DONTWAIT` and `MSG_NOSIGNAL` |
//! | pipe, terminal | `write` to a separate open file description with `O_NONBLOCK` |
//! | any other | `write` |
//!
//! Pipes and devices first say by `poll` that they have room. Where the file cannot be opened
//! again, such as a pipe of another user, gpulimit then uses `write`, which seldom waits.
//!
//! A cancelled thread can end in the C library's functions, so all system calls are made directly.
#![allow(unsafe_code)]

use gpulimit_base::held_signals;
use std::ffi::{CStr, c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null;

const DESCRIPTOR: c_int = libc::STDERR_FILENO;

/// The path of this process's descriptor 2, by which the same file can be opened again.
const SELF: &CStr = c"/proc/self/fd/2";

/// The size of a signal set in the Linux kernel, bytes.
const KERNEL_SET: usize = 8;

/// Writes a line of at most `PIPE_BUF` bytes to standard error. Drops a line that cannot be written
/// at once.
pub fn write(line: &[u8]) {
    match kind() {
        libc::S_IFSOCK => send(line),
        libc::S_IFIFO => without_signals(|| write_ready(line, true)),
        libc::S_IFCHR => without_signals(|| write_ready(line, is_terminal())),
        _ => without_signals(|| plain(DESCRIPTOR, line)),
    }
}

/// Returns whether descriptor 2 is a regular file that the program also reads, such as a database:
/// a program that closes descriptor 2 gets the next file that it opens there.
pub fn is_read() -> bool {
    // SAFETY: the call only asks for the mode in which a descriptor was opened.
    let mode = unsafe { libc::syscall(libc::SYS_fcntl, wide(DESCRIPTOR), wide(libc::F_GETFL)) };
    kind() == libc::S_IFREG && mode & c_long::from(libc::O_ACCMODE) == c_long::from(libc::O_RDWR)
}

/// Widens a number for `libc::syscall`. The upper half of a 32-bit variadic argument would be
/// undefined.
fn wide(number: c_int) -> c_long {
    number.into()
}

/// Returns the error number of a system call that failed; 0 for a system call that succeeded.
fn error(answer: c_long) -> c_int {
    match answer {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        _ => 0,
    }
}

/// Returns the kind of file behind standard error, an `S_IF` constant; 0 where standard error is
/// closed.
fn kind() -> libc::mode_t {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: zero bytes are a valid `stat`. On 64-bit systems the kernel's structure is the C
    // library's.
    let about = unsafe {
        libc::syscall(libc::SYS_fstat, wide(DESCRIPTOR), about.as_mut_ptr());
        about.assume_init()
    };
    about.st_mode & libc::S_IFMT
}

fn send(line: &[u8]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the line is valid for its length, and the address of the receiver is null.
    unsafe {
        libc::syscall(
            libc::SYS_sendto,
            wide(DESCRIPTOR),
            line.as_ptr(),
            line.len(),
            wide(flags),
            null::<u8>(),
            0usize,
        )
    };
}

/// Writes a line to the pipe or device behind standard error, if it has room. With `again`, opens
/// the file again. Returns the error number of the write, 0 on success.
fn write_ready(line: &[u8], again: bool) -> c_int {
    if !is_writable() {
        return 0;
    }
    let Some(own) = again.then(open_again).flatten() else {
        return plain(DESCRIPTOR, line);
    };
    let written = plain(own, line);
    // SAFETY: closes a descriptor that this function opened and gave to no other code.
    unsafe { libc::syscall(libc::SYS_close, wide(own)) };
    written
}

fn is_terminal() -> bool {
    let mut settings = MaybeUninit::<libc::termios>::zeroed();
    // SAFETY: the kernel fills in a part of the C library's structure.
    unsafe { libc::ioctl(DESCRIPTOR, libc::TCGETS, settings.as_mut_ptr()) == 0 }
}

/// Opens the file once more, because only gpulimit's own writes are allowed to be non-blocking.
fn open_again() -> Option<c_int> {
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: passes a NUL-terminated path.
    let own = unsafe {
        libc::syscall(
            libc::SYS_openat,
            wide(libc::AT_FDCWD),
            SELF.as_ptr(),
            wide(flags),
            0usize,
        )
    };
    c_int::try_from(own).ok().filter(|own| *own >= 0)
}

/// Returns whether the pipe or device behind standard error can take bytes now, and has a reader.
fn is_writable() -> bool {
    let mut look = libc::pollfd {
        fd: DESCRIPTOR,
        events: libc::POLLOUT,
        revents: 0,
    };
    let no_time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: passes one `pollfd` and a time, both local variables, and no signal set.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut look,
            1usize,
            &raw const no_time,
            null::<u8>(),
            KERNEL_SET,
        )
    };
    ready == 1 && look.revents == libc::POLLOUT
}

fn plain(descriptor: c_int, line: &[u8]) -> c_int {
    // SAFETY: the line is valid for its length.
    error(unsafe { libc::syscall(libc::SYS_write, wide(descriptor), line.as_ptr(), line.len()) })
}

/// Runs `write`, which returns an error number, and holds back the signals that a failed write
/// causes.
fn without_signals(write: impl FnOnce() -> c_int) {
    // A message line that cannot be written is dropped.
    let _ = held_signals::during(|| match write() {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    });
}

//! Reads files in `/proc` about the memory of another process within a bounded time.
//!
//! A read of `/proc/PID/maps` or `environ` can block forever, and only a signal that ends the
//! reader ends the wait (since Linux 5.3). So a child process with a timer reads the file. The
//! child shares the memory of this process, as a child of `posix_spawn` does.
#![allow(unsafe_code)]

use super::Undisturbed;
use super::signals::Blocked;
use gpulimit_ledger::{MappedFile, Mappings};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::time::Instant;

/// The longest time of a child process, in seconds.
const SECONDS: libc::time_t = 1;
/// The size of the child's stack, in words of 16 bytes, the alignment of stacks. The child only
/// makes system calls.
const STACK: usize = (64 << 10) / 16;

/// The child's exit statuses for "not a member" and "member". Any other exit status is an error
/// number.
const NO: c_int = 0;
const YES: c_int = 255;

/// Returns a function that tells which processes are members of a ledger. After `end`, the function
/// answers `TimedOut`.
pub(super) fn until(end: Instant) -> impl Fn(&MappedFile, &[u32]) -> Vec<io::Result<bool>> {
    move |file, numbers| {
        let look = |number: &u32| match Instant::now() < end {
            true => has_member(file, *number),
            false => Err(io::ErrorKind::TimedOut.into()),
        };
        numbers.iter().map(look).collect()
    }
}

/// Returns whether a process is a member of a ledger. Fails with `TimedOut` if its memory map is
/// not readable in time.
fn has_member(file: &MappedFile, number: u32) -> io::Result<bool> {
    let mappings = Mappings::of(number)?;
    let look = || match file.has_member(&mappings) {
        Ok(false) => NO,
        Ok(true) => YES,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    match in_child(&look)? {
        NO => Ok(false),
        YES => Ok(true),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

unsafe extern "C" {
    /// glibc's function behind `clone`. ThreadSanitizer replaces `clone` by one for children that
    /// do not share the process's memory.
    fn __clone(
        begin: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        ...
    ) -> c_int;
}

/// Work for a child process that shares this process's memory. Returns the exit status.
type Work<'a> = dyn Fn() -> c_int + 'a;

/// Runs `work` in a child process and returns its exit status. Fails with `TimedOut` if it takes
/// longer than [`SECONDS`]. The work must not allocate memory, take a lock or panic.
pub(super) fn in_child(work: &Work<'_>) -> io::Result<c_int> {
    let mut stack = vec![0u128; STACK];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    // Signals and cancellation would run the program's code in the child, which shares this
    // process's memory. Block both.
    let _undisturbed = Undisturbed::new();
    let _blocked = Blocked::new();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let argument = ptr::from_ref(&work).cast_mut().cast::<c_void>();
    let mut status = 0;
    // SAFETY: this thread continues only after the child has ended, so `stack` and `work` outlive
    // the child. The child has its own signal handlers and descriptors. It allocates no memory,
    // takes no lock, and writes only its stack, what `work` shares with it and this thread's
    // `errno`. It sends no signal when it ends, so the program's waits do not see it.
    let waited = unsafe {
        let child = __clone(begin, top, flags, argument);
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::waitpid(child, &raw mut status, libc::__WCLONE) == child
    };
    drop(stack);
    if !waited {
        return Err(io::Error::last_os_error());
    }
    if libc::WIFSIGNALED(status) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(libc::WEXITSTATUS(status))
}

/// Begins the child process of [`in_child`].
extern "C" fn begin(work: *mut c_void) -> c_int {
    // SAFETY: `work` points to the work of [`in_child`], which waits until this child has ended.
    let work = unsafe { *work.cast::<&Work<'_>>() };
    match end_in_time() {
        true => work(),
        false => libc::EINVAL,
    }
}

/// Lets the kernel kill this process after [`SECONDS`]. No other signal is certain to end a process
/// that another one traces, such as `strace -f`. Makes system calls only: the C library's functions
/// allocate memory.
fn end_in_time() -> bool {
    // SAFETY: all bit patterns are valid for the plain numbers of this structure.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = libc::SIGKILL;
    let second = |tv_sec| libc::timespec { tv_sec, tv_nsec: 0 };
    let time = libc::itimerspec {
        it_interval: second(0),
        it_value: second(SECONDS),
    };
    let mut timer: c_int = 0;
    let nothing = ptr::null::<libc::itimerspec>();
    // SAFETY: the calls read `event` and `time` and write `timer`, all of them local.
    unsafe {
        libc::syscall(
            libc::SYS_timer_create,
            libc::c_long::from(libc::CLOCK_MONOTONIC),
            &raw const event,
            &raw mut timer,
        ) == 0
            && libc::syscall(
                libc::SYS_timer_settime,
                libc::c_long::from(timer),
                0usize,
                &raw const time,
                nothing,
            ) == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_finds_the_same_members_as_this_process() {
        let file = MappedFile::from("ff:ff 1".to_owned());
        assert!(!has_member(&file, std::process::id()).expect("read"));
        let gone = has_member(&file, 1 << 23).map_err(|error| error.kind());
        assert_eq!(gone, Err(io::ErrorKind::NotFound));
    }
}

//! A look at the mappings of another process that comes to an end, whatever that process does.
//!
//! `/proc/PID/maps` waits for the lock of that process's memory. Its user can have the lock held
//! for ever, as by a file system of their own that does not answer. Only a signal that ends the
//! reader ends the wait (since Linux 5.3). So a child process reads, and has an alarm set. The
//! library may start no thread and no program for this: the child shares the memory of this
//! process, as that of `posix_spawn` does.
#![allow(unsafe_code)]

use super::Undisturbed;
use super::signals::Blocked;
use gpulimit_ledger::{MappedFile, Mappings};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::time::Instant;

/// How long a look may take.
const SECONDS: libc::time_t = 1;
/// The stack of the child, which calls nothing but the kernel. In words of 16 bytes, as stacks are
/// aligned.
const STACK: usize = (64 << 10) / 16;

/// What the child says by its status; else the kernel's number of an error.
const NO: c_int = 0;
const YES: c_int = 255;

/// Says which processes are members of a ledger, as [`super::Targets`] asks; of those that it has
/// not come to before `end`, nothing.
pub(super) fn until(end: Instant) -> impl Fn(&MappedFile, &[u32]) -> Vec<io::Result<bool>> {
    move |file, numbers| {
        let look = |number: &u32| match Instant::now() < end {
            true => has_member(file, *number),
            false => Err(io::ErrorKind::TimedOut.into()),
        };
        numbers.iter().map(look).collect()
    }
}

struct Task<'a> {
    file: &'a MappedFile,
    mappings: Mappings,
}

/// Whether the process that has this number in `/proc` is a member of a ledger. `TimedOut`: the
/// look did not end.
fn has_member(file: &MappedFile, number: u32) -> io::Result<bool> {
    let task = Task {
        file,
        mappings: Mappings::of(number)?,
    };
    let mut stack = vec![0u128; STACK];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    // No handler of the program may run in the child, and no cancellation end it: both would go on
    // in the memory of this process.
    let _undisturbed = Undisturbed::new();
    let _blocked = Blocked::new();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let argument = ptr::from_ref(&task).cast_mut().cast::<c_void>();
    let mut status = 0;
    // SAFETY: this thread goes on when the child has ended, so that `stack` and `task` outlive it.
    // The child has tables of signal handlers and descriptors of its own; it allocates nothing,
    // takes no lock, and writes no memory but its stack and this thread's `errno`. It sends no
    // signal at its end, so that the program's own waits do not find it.
    let waited = unsafe {
        let child = libc::clone(look, top, flags, argument);
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
    match libc::WEXITSTATUS(status) {
        NO => Ok(false),
        YES => Ok(true),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The child.
extern "C" fn look(task: *mut c_void) -> c_int {
    // SAFETY: the task of [`has_member`], which waits for this process.
    let task = unsafe { &*task.cast::<Task<'_>>() };
    let alarm = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
        it_value: libc::timeval {
            tv_sec: SECONDS,
            tv_usec: 0,
        },
    };
    // SAFETY: changes what happens to this process alone at one signal; reads a value of ours.
    let is_set = unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL) != libc::SIG_ERR
            && libc::setitimer(libc::ITIMER_REAL, &raw const alarm, ptr::null_mut()) == 0
    };
    if !is_set {
        return libc::EINVAL;
    }
    Blocked::let_through(libc::SIGALRM);
    match task.file.has_member(&task.mappings) {
        Ok(false) => NO,
        Ok(true) => YES,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_sees_what_this_process_sees() {
        let file = MappedFile::from("ff:ff 1".to_owned());
        assert!(!has_member(&file, std::process::id()).expect("read"));
        let gone = has_member(&file, 1 << 23).map_err(|error| error.kind());
        assert_eq!(gone, Err(io::ErrorKind::NotFound));
    }
}

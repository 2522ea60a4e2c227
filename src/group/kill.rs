//! Killing the process of a slot, and no other that has come to bear its number.
#![allow(unsafe_code)]

use crate::ledger::{Identity, SeenProcess};
use std::io;

/// Sends SIGKILL. Not to a process of another pid namespace than ours, whose number means another one here: `NotFound`, as for one that
/// is gone.
pub fn kill(process: &Identity) -> io::Result<()> {
    send(process, libc::SIGKILL)
}

/// As [`kill`], with another signal.
pub fn send(process: &Identity, signal: i32) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let pid = SeenProcess::pid_of(process).ok_or_else(gone)?;
    let pid = libc::pid_t::try_from(pid).map_err(|_| gone())?;
    // SAFETY: plain numbers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(descriptor @ 0..) = libc::c_int::try_from(descriptor) else {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            // Before Linux 5.3, or forbidden in this container.
            Some(libc::ENOSYS | libc::EPERM) => send_by_number(process, pid, signal),
            Some(libc::ESRCH) => Err(gone()),
            _ => Err(error),
        };
    };
    // Behind the descriptor is one process for good: if it is the right one now, it is the right one when the signal is sent.
    let sent = if SeenProcess::by_pid(pid as u32).is(process) {
        let nothing = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: our descriptor and plain numbers.
        match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, descriptor, signal, nothing, 0) }
        {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    } else {
        Err(gone())
    };
    // SAFETY: our own descriptor, used no more.
    unsafe { libc::close(descriptor) };
    sent
}

fn send_by_number(process: &Identity, pid: libc::pid_t, signal: i32) -> io::Result<()> {
    if !SeenProcess::by_pid(pid as u32).is(process) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: plain numbers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

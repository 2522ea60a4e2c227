//! The few system calls that the standard library does not offer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Milliseconds since boot, the same for all processes of a machine (but for those in a time namespace of their own);
/// never 0.
pub(super) fn boot_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`. The clock exists on every kernel since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// The real user id.
pub(super) fn uid() -> u32 {
    // SAFETY: always succeeds and touches nothing.
    unsafe { libc::getuid() }
}

/// Makes sure that the file system has room for these bytes of the file, so that touching them cannot fail.
///
/// Not `posix_fallocate`: where the file system cannot do it, that one writes, in a race with the members. There the
/// room is not reserved.
pub(super) fn reserve(file: &File, offset: u64, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open; the call touches no memory of ours. The size of the file stays.
        let result = unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                len as libc::off_t,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Whether there is a process of this pid, whoever owns it. The answer of a `/proc` that hides other users' processes would be no.
pub(super) fn exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return false;
    };
    // SAFETY: signal 0 is sent to nobody.
    let sent = unsafe { libc::kill(pid, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

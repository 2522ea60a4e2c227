//! What the ledger asks of the system besides files: the time, room, sleep.
#![allow(unsafe_code)]

use super::atomic::AtomicU64;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

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

/// The clock that waits are measured by.
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Lets others run for so long.
pub(super) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Lets others run for a moment.
pub(super) fn yield_now() {
    std::thread::yield_now();
}

/// Waits for an instant without giving the processor away.
pub(super) fn spin() {
    std::hint::spin_loop();
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

/// The inode of this process's pid namespace; 0 unknown.
pub(super) fn pid_ns() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |ns| ns.ino())
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

/// Why a sleeper goes on.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Woken {
    BySignal,
    Other,
}

/// The half of a word that counts: the kernel's futexes have 32 bits.
fn low_half(word: &AtomicU64) -> *mut u32 {
    let word = word.as_ptr().cast::<u32>();
    if cfg!(target_endian = "little") {
        word
    } else {
        word.wrapping_add(1)
    }
}

/// Sleeps while the low half of the word, which lies in a shared mapping, is `expected`, for `time` at most.
pub(super) fn futex_wait(word: &AtomicU64, expected: u32, time: Duration) -> Woken {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the word outlives the call, and the kernel reads 32 aligned bits of it; so does the time.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            low_half(word),
            libc::FUTEX_WAIT,
            expected,
            &raw const time,
        )
    };
    let interrupted = result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
    if interrupted {
        Woken::BySignal
    } else {
        Woken::Other
    }
}

/// Wakes all who sleep on the word, and says how many there were.
pub(super) fn futex_wake_all(word: &AtomicU64) -> usize {
    // SAFETY: the kernel looks at the address only, which is that of a living word.
    let woken =
        unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, i32::MAX) };
    usize::try_from(woken).unwrap_or(0)
}

//! The system calls of the ledger that do not concern locks: clocks, sleeping, and reserving space
//! in the ledger file.
#![allow(unsafe_code)]

use super::atomic::AtomicU64;
use super::tick::Tick;
use gpulimit_base::interrupted;
pub(super) use gpulimit_base::process::pid_ns;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Returns milliseconds since boot, never 0. All processes of a machine read the same clock, unless
/// they are in different time namespaces.
pub(super) fn boot_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`. The clock exists on every kernel since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// Returns the time by the wall clock, with the precision of the kernel's tick: 4 ms on most
/// machines. All processes of a machine read the same clock.
#[inline]
pub(super) fn wall_tick() -> Tick {
    coarse(libc::CLOCK_REALTIME_COARSE)
}

/// Returns the time of [`wall_tick`] in milliseconds since 1970.
pub(super) fn wall_ms() -> u64 {
    wall_tick().ms()
}

/// Returns milliseconds by a clock that no step of the wall clock changes and that stands still
/// while the machine sleeps, with the precision of the kernel's tick. Never 0. The clock of a
/// process in another time namespace differs.
pub(super) fn steady_ms() -> u64 {
    coarse(libc::CLOCK_MONOTONIC_COARSE).ms().max(1)
}

#[inline]
fn coarse(clock: libc::clockid_t) -> Tick {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`. The coarse clocks exist since Linux 2.6.32.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    Tick::new(now.tv_sec as u64, now.tv_nsec as u64)
}

/// Returns the time of the monotonic clock, which measures waits.
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Sleeps for the given time.
pub(super) fn sleep(time: Duration) {
    #[cfg(test)]
    super::scratch::happens_in_a_sleep();
    std::thread::sleep(time);
}

/// Lets other threads run for a moment of unspecified length.
pub(super) fn yield_now() {
    std::thread::yield_now();
}

/// Waits for an instant without giving up the processor.
pub(super) fn spin() {
    std::hint::spin_loop();
}

/// Reserves file system space for these bytes. Does nothing if unsupported, or forbidden by a
/// sandbox: `posix_fallocate` would write to the file, in a race with members.
pub(super) fn reserve(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let reserved = interrupted::again(|| {
        // SAFETY: the descriptor is open, and the call accesses no memory of this process.
        // FALLOC_FL_KEEP_SIZE keeps the file's size.
        let result = unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                len as libc::off_t,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    let missing = [libc::EOPNOTSUPP, libc::ENOSYS, libc::EPERM];
    match reserved.as_ref().map_err(io::Error::raw_os_error) {
        Err(Some(error)) if missing.contains(&error) => Ok(()),
        _ => reserved,
    }
}

/// Returns the address of the low 32 bits of a word. A futex has only 32 bits.
fn low_half(word: &AtomicU64) -> *mut u32 {
    let word = word.as_ptr().cast::<u32>();
    if cfg!(target_endian = "little") {
        word
    } else {
        word.wrapping_add(1)
    }
}

/// Sleeps while the low half of the word is `expected`, at most for `time`. Other processes may
/// share the word. Returns false if a signal handler has ended the sleep.
pub(super) fn futex_wait(word: &AtomicU64, expected: u32, time: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the word and the time outlive the call; the kernel reads 32 aligned bits of the word.
    let slept = unsafe {
        libc::syscall(
            libc::SYS_futex,
            low_half(word),
            libc::c_long::from(libc::FUTEX_WAIT),
            libc::c_long::from(expected),
            &raw const time,
        )
    };
    slept == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted
}

/// Wakes all threads that sleep on the word, and returns their number.
pub(super) fn futex_wake_all(word: &AtomicU64) -> usize {
    // SAFETY: the kernel uses only the address of the word, and the word is alive.
    let woken = unsafe {
        libc::syscall(
            libc::SYS_futex,
            low_half(word),
            libc::c_long::from(libc::FUTEX_WAKE),
            libc::c_long::from(i32::MAX),
        )
    };
    usize::try_from(woken).unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_support::wait_until;

    #[test]
    fn the_clock_counts_from_boot() {
        let before = boot_ms();
        let uptime = std::fs::read_to_string("/proc/uptime").expect("readable");
        // In hundredths of a second.
        let (uptime, _) = uptime.split_once(' ').expect("two numbers");
        let uptime: u64 = uptime.replace('.', "").parse().expect("a number");
        assert!((before / 10..=boot_ms() / 10).contains(&uptime), "{uptime}");
        sleep(Duration::from_millis(20));
        assert!(boot_ms() >= before + 20);
    }

    #[test]
    fn a_sleeper_on_a_futex_is_woken() {
        let word = AtomicU64::new(5 << 32 | 7);
        // Only a test that has failed sleeps to the end.
        let long = 2 * gpulimit_support::patience();
        std::thread::scope(|scope| {
            let changed = scope.spawn(|| futex_wait(&word, 6, long));
            let ends = || changed.is_finished();
            wait_until("a changed word prevents sleeping", ends);
        });
        assert_eq!(futex_wake_all(&word), 0, "no thread sleeps");
        futex_wait(&word, 7, Duration::from_millis(1));
        std::thread::scope(|scope| {
            let sleepers = [0; 2].map(|_| scope.spawn(|| futex_wait(&word, 7, long)));
            let mut woken = 0;
            wait_until("both sleep and are woken", || {
                woken += futex_wake_all(&word);
                woken == 2
            });
            let ended = || sleepers.iter().all(|sleeper| sleeper.is_finished());
            wait_until("both are awake", ended);
        });
    }

    #[test]
    fn space_is_reserved_where_the_file_system_can() {
        let open = |path, write| File::options().read(true).write(write).open(path);
        // The file system of this file cannot reserve space.
        let file = open("/proc/self/comm", true).expect("there");
        reserve(&file, 0, 1).expect("reserving succeeds without an effect");
        let file = open("/proc/self/comm", false).expect("there");
        reserve(&file, 0, 1).expect_err("the file is not open for writing");
    }
}

//! Reading of files in `/proc`. They contain names that users choose, which may consist of almost
//! any bytes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Reads a file of `/proc`. Replaces invalid UTF-8, so that a process cannot hide by its name.
///
/// # Errors
/// Any error of the system.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(fs::read(path)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns a field of a text like `/proc/PID/status`, which has a name and a colon in each line.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

/// Returns a number in the text of `/proc/meminfo` or `/proc/PID/status`, in bytes.
#[inline(never)]
pub fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let number = field(text, name)?.strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the bytes of the host's memory, and the bytes that programs can still take of it without
/// swapping (`MemTotal` and `MemAvailable`). `None` if `/proc` does not tell. Allocates nothing.
pub fn host_memory() -> Option<(u64, u64)> {
    // The kernel writes these two numbers in the first three lines.
    let mut text = [0; 256];
    let length = File::open("/proc/meminfo").ok()?.read(&mut text).ok()?;
    let text = str::from_utf8(text.get(..length)?).ok()?;
    Some((
        kibibytes(text, "MemTotal")?,
        kibibytes(text, "MemAvailable")?,
    ))
}

/// Returns what requests leave free of a host's `total` bytes on a GPU that shares them, where no
/// group has a `keep_free`: a tenth, and at least 8 GiB, but no more than half.
pub fn host_reserve(total: u64) -> u64 {
    (total / 10).max(8 << 30).min(total / 2)
}

/// Reads `/proc/PID/status`, in [`directory`].
///
/// # Errors
/// Any error of the system.
pub fn status(pid: u32) -> io::Result<String> {
    Ok(living(pid)?.1)
}

/// Returns the directory of a process in `/proc`. If its first thread has ended by `pthread_exit`,
/// returns that of a thread that runs on, because the process's own has no memory map then.
pub fn directory(pid: u32) -> PathBuf {
    living(pid).map_or_else(|_| format!("/proc/{pid}").into(), |(path, _)| path)
}

/// Returns [`directory`] and the text of the file `status` in it.
fn living(pid: u32) -> io::Result<(PathBuf, String)> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let first = read(process.join("status"))?;
    if !has_ended(&first) {
        return Ok((process, first));
    }
    let threads = fs::read_dir(process.join("task"));
    let mut others = (threads.into_iter().flatten().flatten())
        .filter_map(|thread| Some((thread.path(), read(thread.path().join("status")).ok()?)));
    let lives = others.find(|(_, status)| !has_ended(status));
    Ok(lives.unwrap_or((process, first)))
}

/// Returns whether the text of [`status`] shows a process that has ended.
pub fn has_ended(status: &str) -> bool {
    field(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// Returns whether a process is stopped, by a signal or a debugger; `None` if unknown.
pub fn is_stopped(pid: u32) -> Option<bool> {
    let status = status(pid).ok()?;
    Some(field(&status, "State")?.starts_with(['T', 't']))
}

/// Returns whether this process ignores a signal.
pub fn ignores(signal: i32) -> bool {
    let status = read("/proc/self/status").unwrap_or_default();
    has_signal(&status, "SigIgn", signal)
}

/// Returns whether the text of `/proc/PID/status` shows a process that SIGKILL has yet to end.
pub fn is_killed(status: &str) -> bool {
    let mut pending = ["SigPnd", "ShdPnd"].into_iter();
    pending.any(|set| has_signal(status, set, libc::SIGKILL))
}

/// Returns whether a set of signals in the text of `/proc/PID/status` has this signal.
fn has_signal(status: &str, set: &str, signal: i32) -> bool {
    let mask = field(status, set).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.unwrap_or(0) & (1 << (signal - 1)) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_support::{Running, wait_until};
    use std::process::Command;

    #[test]
    fn a_process_has_the_state_of_a_thread_that_lives() {
        let mut process = Running::without_first_thread();
        let pid = process.id();
        assert!(!has_ended(&status(pid).expect("read")));
        let map = fs::read(directory(pid).join("maps")).expect("read");
        assert!(!map.is_empty(), "the thread's memory map");
        let stop = format!("-STOP {pid}");
        let sent = Command::new("kill").args(stop.split(' ')).status();
        assert!(sent.is_ok_and(|status| status.success()));
        wait_until("the process is stopped", || is_stopped(pid) == Some(true));
        process.kill().expect("killed");
        wait_until("the process ends", || {
            has_ended(&status(pid).expect("not reaped"))
        });
    }

    #[test]
    fn a_name_that_is_not_utf8_does_not_hide_a_process() {
        fs::write("/proc/thread-self/comm", b"a\xff)\n").expect("named");
        let text = read("/proc/thread-self/status").expect("read");
        assert!(text.starts_with("Name:\ta\u{fffd})\\n\n"), "{text}");
        assert!(text.contains("\nUid:\t"), "{text}");
        assert!(read("/proc/0/status").is_err());
    }
}

//! Reading of files in `/proc`. They contain names that users choose, which may consist of almost
//! any bytes.

use std::fs;
use std::io;
use std::path::Path;

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

/// Returns whether a process is stopped, by a signal or a debugger; `None` if unknown.
pub fn is_stopped(pid: u32) -> Option<bool> {
    let status = read(format!("/proc/{pid}/status")).ok()?;
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

    #[test]
    fn a_name_that_is_not_utf8_does_not_hide_a_process() {
        fs::write("/proc/thread-self/comm", b"a\xff)\n").expect("named");
        let text = read("/proc/thread-self/status").expect("read");
        assert!(text.starts_with("Name:\ta\u{fffd})\\n\n"), "{text}");
        assert!(text.contains("\nUid:\t"), "{text}");
        assert!(read("/proc/0/status").is_err());
    }
}

//! Identifies the first process of a container by pid and start time, because the kernel reuses
//! pids.

use gpulimit_base::proc;
use std::fmt;
use std::str::FromStr;

/// A process of this machine, identified by pid and start time.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Process {
    pid: u32,
    /// The process's start time in clock ticks since boot.
    start: u64,
}

impl Process {
    /// Returns the live process with this pid; `None` for a zombie.
    pub fn living(pid: u32) -> Option<Self> {
        let stat = proc::read(format!("/proc/{pid}/stat")).ok()?;
        let start = start(&stat)?;
        Some(Self { pid, start })
    }

    /// Returns whether this process still runs. A later process with the same pid does not count.
    pub fn lives(self) -> bool {
        Self::living(self.pid) == Some(self)
    }
}

/// Parses the start time (field 22) from the text of `/proc/PID/stat`; `None` if the process is
/// dead (field 3).
fn start(stat: &str) -> Option<u64> {
    // Skip the command name in parentheses, which may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.start)
    }
}

impl FromStr for Process {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, start) = text.split_once(' ').ok_or(())?;
        Ok(Self {
            pid: pid.parse().map_err(drop)?,
            start: start.parse().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_processes_and_reused_pids_are_not_alive() {
        let own = Process::living(std::process::id()).expect("alive");
        assert!(own.lives());
        assert_eq!(own.to_string().parse(), Ok(own));
        let other = Process {
            start: own.start + 1,
            ..own
        };
        assert!(!other.lives());
        let line =
            |state| format!("7 (a) b) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20");
        assert_eq!(start(&line("S")), Some(777));
        assert_eq!(start(&line("Z")), None);
        assert_eq!(start("7 (cut) S 1 2"), None);
    }
}

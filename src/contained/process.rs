//! Identifies the first process of a container by pid and start time, because the kernel reuses
//! pids.

use gpulimit_base::identity::SeenProcess;
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
        let status = proc::status(pid).ok()?;
        let start = SeenProcess::by_pid(pid).start_time()?;
        (!proc::has_ended(&status)).then_some(Self { pid, start })
    }

    /// Returns whether this process still runs. A later process with the same pid does not count.
    pub fn lives(self) -> bool {
        Self::living(self.pid) == Some(self)
    }
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
    use gpulimit_support::{Running, wait_until};
    use std::process::Command;

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
        let zombie = Running::start(&mut Command::new("true"));
        wait_until("a zombie is dead", || {
            Process::living(zombie.id()).is_none()
        });
        let process = Running::without_first_thread();
        assert!(Process::living(process.id()).is_some());
    }
}

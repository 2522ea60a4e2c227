//! Identifies the first process of a container by pid and start time, because the kernel reuses
//! pids.

use gpulimit_base::identity::SeenProcess;
use gpulimit_base::proc;
use serde::{Deserialize, Serialize};

/// A process of this machine, identified by pid and start time.
#[derive(Copy, Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::{Running, wait_until};
    use std::process::Command;

    #[test]
    fn dead_processes_and_reused_pids_are_not_alive() {
        let own = Process::living(std::process::id()).expect("alive");
        assert!(own.lives());
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

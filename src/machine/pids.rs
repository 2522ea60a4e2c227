//! Finds the pids of processes in the caller's pid namespace.

use gpulimit_base::identity::{Identity, SeenProcess};
use std::cell::OnceCell;

/// Finds the pid of a process by its identity. Reads all of `/proc` at most once, for processes of
/// other pid namespaces.
#[derive(Default)]
pub struct Pids {
    own_namespace: OnceCell<u64>,
    seen: OnceCell<Vec<(u32, SeenProcess)>>,
}

impl Pids {
    /// Returns the pid of a process in the caller's pid namespace; `None` if the process has ended
    /// or is not visible there.
    pub fn here(&self, process: &Identity) -> Option<u32> {
        let own = self
            .own_namespace
            .get_or_init(|| Identity::of_self().pid_ns);
        if process.pid_ns == *own {
            return Some(process.pid);
        }
        let seen = self.seen.get_or_init(|| SeenProcess::everybody().collect());
        let found = seen.iter().find(|(_, seen)| seen.is(process));
        found.map(|(pid, _)| *pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_namespace_is_found_by_its_identity() {
        let me = Identity::of_self();
        let pids = Pids::default();
        assert_eq!(pids.here(&me), Some(me.pid));
        // No process is in this pid namespace.
        let elsewhere = Identity { pid_ns: 1, ..me };
        assert_eq!(pids.here(&elsewhere), None);
        // The pid namespace is unknown, so the pid counts as one of the caller's namespace.
        let unknown = Identity { pid_ns: 0, ..me };
        assert_eq!(pids.here(&unknown), Some(me.pid));
    }
}

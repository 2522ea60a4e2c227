//! Finds the pids of processes in the caller's pid namespace.

use gpulimit_base::identity::{Identity, SeenProcess};
use std::cell::OnceCell;

/// Translates processes' identities to pids. Reads `/proc` once, when the first process of another
/// pid namespace is looked up.
#[derive(Default)]
pub struct Pids {
    own_namespace: OnceCell<u64>,
    seen: OnceCell<Vec<(u32, SeenProcess)>>,
}

impl Pids {
    /// Returns the pid of a process in the caller's pid namespace; `None` if the process is not
    /// visible in that namespace or has ended.
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
        // An identity in another pid namespace, which has no processes.
        let elsewhere = Identity { pid_ns: 1, ..me };
        assert_eq!(pids.here(&elsewhere), None);
        // An identity without a pid namespace, from the slot of a process whose namespace is
        // unknown.
        let unknown = Identity { pid_ns: 0, ..me };
        assert_eq!(pids.here(&unknown), Some(me.pid));
    }
}

//! The numbers that processes have where we are.

use gpulimit_base::identity::{Identity, SeenProcess};
use std::cell::OnceCell;

/// Looks at `/proc` once, when the first process of another pid namespace is asked for.
#[derive(Default)]
pub struct Pids {
    own_namespace: OnceCell<u64>,
    seen: OnceCell<Vec<(u32, SeenProcess)>>,
}

impl Pids {
    /// The number of a process in our pid namespace; `None` when it is not in there, or gone.
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
    fn a_process_of_another_namespace_is_found_by_what_it_says_of_itself() {
        let me = Identity::of_self();
        let pids = Pids::default();
        assert_eq!(pids.here(&me), Some(me.pid));
        // In a namespace that nobody here is in, whatever its number.
        let elsewhere = Identity { pid_ns: 1, ..me };
        assert_eq!(pids.here(&elsewhere), None);
        // As one from before the namespace could be told.
        let unknown = Identity { pid_ns: 0, ..me };
        assert_eq!(pids.here(&unknown), Some(me.pid));
    }
}

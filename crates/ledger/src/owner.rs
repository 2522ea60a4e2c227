//! The owner of a slot, as written in the ledger file.

use super::Ledger;
use super::atomic::Ordering;
use super::layout::{Owner, load_bytes, store_bytes};
use super::lock::{self, Bytes, Description};
use gpulimit_base::identity::Identity;

impl Ledger {
    /// Returns the owner of a slot: see [`Owner::read`].
    pub(super) fn owner(&self, slot: usize) -> Option<Identity> {
        self.content().slots[slot].owner.read()
    }

    /// Returns whether a slot has no living owner, as [`is_dead`]. During a short look, an owner
    /// that was found alive counts as alive.
    pub(super) fn has_died(&self, file: &Description, slot: usize) -> bool {
        let is_known = self.look.as_ref().is_some_and(|look| {
            look.alive[slot / 64].load(Ordering::Relaxed) >> (slot % 64) & 1 != 0
        });
        if is_known {
            return false;
        }
        let locked = lock::is_locked(file, Bytes::owner(slot));
        if matches!(locked, Ok(true)) {
            self.found_alive(slot);
        }
        matches!(locked, Ok(false))
    }

    /// Takes note, during a short look, that the owner of a slot was found alive.
    pub(super) fn found_alive(&self, slot: usize) {
        if let Some(look) = &self.look {
            let alive = &look.alive[slot / 64];
            // If another thread overwrites the bit, the next question asks again.
            alive.store(
                alive.load(Ordering::Relaxed) | 1 << (slot % 64),
                Ordering::Relaxed,
            );
        }
    }
}

/// Returns whether a slot has no living owner; false if its file lock cannot be queried.
pub(super) fn is_dead(file: &Description, slot: usize) -> bool {
    matches!(lock::is_locked(file, Bytes::owner(slot)), Ok(false))
}

impl Owner {
    /// Writes the owner.
    pub(super) fn write(&self, process: &Identity) {
        store_bytes(&self.command, &process.command);
        self.pid_ns.store(process.pid_ns, Ordering::Relaxed);
        self.start_time.store(process.start_time, Ordering::Relaxed);
        self.uid.store(u64::from(process.uid), Ordering::Relaxed);
        self.pid.store(u64::from(process.pid), Ordering::Release);
    }

    /// Returns the owner of a slot, if any. Without the claim lock, the result may mix two owners.
    pub(super) fn read(&self) -> Option<Identity> {
        let pid = self.pid.load(Ordering::Acquire) as u32;
        if pid == 0 {
            return None;
        }
        Some(Identity {
            pid,
            pid_ns: self.pid_ns.load(Ordering::Relaxed),
            start_time: self.start_time.load(Ordering::Relaxed),
            uid: self.uid.load(Ordering::Relaxed) as u32,
            command: load_bytes(&self.command),
        })
    }

    /// Removes the owner.
    pub(super) fn erase(&self) {
        self.pid.store(0, Ordering::Relaxed);
        let words = [&self.pid_ns, &self.start_time, &self.uid, &self.birth];
        for word in words.into_iter().chain(&self.command) {
            word.store(0, Ordering::Relaxed);
        }
        self.dead_since.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_owner_is_read_as_written_and_erased() {
        let scratch = Scratch::new();
        let owner = &scratch.content().slots[9].owner;
        assert_eq!(owner.read(), None);
        let one = Identity {
            pid: 7,
            pid_ns: 1 << 40,
            start_time: 1 << 50,
            uid: u32::MAX,
            command: std::array::from_fn(|at| at as u8 + 1),
        };
        owner.write(&one);
        assert_eq!(owner.read(), Some(one));
        owner.dead_since.store(5, Ordering::Relaxed);
        owner.erase();
        assert_eq!(owner.read(), None);
        let words = [
            &owner.pid_ns,
            &owner.start_time,
            &owner.uid,
            &owner.dead_since,
        ];
        let mut words = words.into_iter().chain(&owner.command);
        assert!(words.all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_short_look_asks_once_whether_an_owner_is_alive() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let looks = [0; 2].map(|_| Ledger::look(&scratch.place.path, true).expect("opened"));
        let index = slot.index();
        let has_died = |look: &Ledger| {
            let file = look.open_file(false).expect("open");
            look.has_died(&file, index)
        };
        assert!(!has_died(&looks[0]));
        drop(slot);
        assert!(!has_died(&looks[0]), "the look is short");
        assert!(has_died(&looks[1]), "this look has not asked before");
    }
}

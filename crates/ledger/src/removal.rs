//! Removal of a group without losing a process that is just joining the group.

use super::lock::{self, Bytes, Description};
use super::{Ledger, LedgerError};

/// A guard that prevents all processes from claiming a slot, until drop. A process that could not
/// claim a slot finds afterwards that the ledger file is gone, and opens the group anew.
#[derive(Debug)]
pub struct Removal {
    file: Description,
}

impl Ledger {
    /// Prevents all processes from joining the group, if its ledger has no living member. The
    /// caller may then remove the group's files.
    ///
    /// Dead members whose slots are still draining do not count as living; call [`Self::clean`]
    /// first if their memory matters.
    pub fn begin_removal(&self) -> Result<Removal, LedgerError> {
        let path = &self.place.path;
        let error = |error| LedgerError::io(path, "lock", error);
        let in_use = || LedgerError::InUse { path: path.clone() };
        let file = self.place.open(true)?;
        if !lock::try_lock(&file, Bytes::CLAIMS).map_err(error)? {
            return Err(in_use());
        }
        let removal = Removal { file };
        // The claim bytes are locked before the owner locks are checked. A process takes its owner
        // lock only while it holds a claim lock, so no owner lock can appear after the check.
        match lock::is_locked(&removal.file, Bytes::OWNERS).map_err(error)? {
            true => Err(in_use()),
            false => Ok(removal),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // Closing the file does not always release the lock: a child that was forked meanwhile may
        // hold the open file description open. Therefore the lock is released explicitly.
        let _ = lock::unlock(&self.file, Bytes::CLAIMS);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::scratch::Scratch;

    #[test]
    fn removal_ends_although_a_forked_child_has_the_descriptor() {
        let scratch = Scratch::new();
        let removal = scratch.begin_removal().expect("nobody");
        let _childs = removal.file.try_clone().expect("a descriptor");
        drop(removal);
        drop(scratch.join());
    }
}

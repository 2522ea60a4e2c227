//! Removal of a group, safe against processes that are just joining the group.

use super::lock::{self, Bytes, Description};
use super::{Ledger, LedgerError};

/// A guard that keeps all processes from claiming a slot. Processes that waited find the ledger
/// file gone and open the group anew.
#[derive(Debug)]
pub struct Removal {
    file: Description,
}

impl Ledger {
    /// Keeps processes from joining the group, so that its files can be removed. Fails if a member
    /// lives; ignores dead members.
    pub fn begin_removal(&self) -> Result<Removal, LedgerError> {
        let path = &self.place.path;
        let error = |error| LedgerError::io(path, "lock", error);
        let in_use = || LedgerError::InUse { path: path.clone() };
        let file = self.place.open(true)?;
        if !lock::try_lock(&file, Bytes::CLAIMS).map_err(error)? {
            return Err(in_use());
        }
        let removal = Removal { file };
        // The claim locks are taken first. Owner locks need a claim lock, so none can appear after
        // the check.
        match lock::is_locked(&removal.file, Bytes::OWNERS).map_err(error)? {
            true => Err(in_use()),
            false => Ok(removal),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that was forked meanwhile may keep the lock
        // alive.
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

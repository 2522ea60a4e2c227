//! Removal of a group without losing a process that is just joining.

use super::lock::{self, Bytes, Description};
use super::{Ledger, LedgerError};

/// Prevents all processes from claiming a slot, until drop. A process that is turned away finds the
/// file gone, and starts over.
#[derive(Debug)]
pub struct Removal {
    file: Description,
}

impl Ledger {
    /// Keeps all processes from joining, if the ledger has no member. The caller may then remove
    /// the group's files.
    ///
    /// Dead members that are still draining do not count as members; call [`Self::clean`] before if
    /// that matters.
    pub fn begin_removal(&self) -> Result<Removal, LedgerError> {
        let path = &self.place.path;
        let error = |error| LedgerError::io(path, "lock", error);
        let in_use = || LedgerError::InUse { path: path.clone() };
        let file = self.place.open(true)?;
        if !lock::try_lock(&file, Bytes::CLAIMS).map_err(error)? {
            return Err(in_use());
        }
        let removal = Removal { file };
        // Checked after locking the claim bytes, because a process takes its owner lock while it
        // holds a claim lock.
        match lock::is_locked(&removal.file, Bytes::OWNERS).map_err(error)? {
            true => Err(in_use()),
            false => Ok(removal),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // Explicit, because a child that was forked meanwhile may hold the description open.
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

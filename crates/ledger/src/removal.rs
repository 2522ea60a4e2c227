//! Removing a group without losing a member that is just joining.

use super::lock::{self, Bytes, Description};
use super::{Ledger, LedgerError};

/// While this lives nobody can claim a slot. Who is turned away finds the file gone and starts
/// over.
#[derive(Debug)]
pub struct Removal {
    file: Description,
}

impl Ledger {
    /// Keeps everybody from joining, if nobody is a member: the files of the group may then be
    /// removed.
    ///
    /// Dead members that drain do not count; ask [`Self::clean`] before.
    pub fn begin_removal(&self) -> Result<Removal, LedgerError> {
        let path = &self.place.path;
        let error = |error| LedgerError::io(path, "lock", error);
        let in_use = || LedgerError::InUse { path: path.clone() };
        let file = self.place.open(true)?;
        if !lock::try_lock(&file, Bytes::CLAIMS).map_err(error)? {
            return Err(in_use());
        }
        let removal = Removal { file };
        // Only now: a claimer takes the owner lock while it holds its claim lock.
        match lock::is_locked(&removal.file, Bytes::OWNERS).map_err(error)? {
            true => Err(in_use()),
            false => Ok(removal),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // A child forked meanwhile may have the descriptor too.
        let _ = lock::unlock(&self.file, Bytes::CLAIMS);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::scratch::Scratch;

    #[test]
    fn it_ends_though_a_forked_child_has_the_descriptor() {
        let scratch = Scratch::new();
        let removal = scratch.begin_removal().expect("nobody");
        let _childs = removal.file.try_clone().expect("a descriptor");
        drop(removal);
        drop(scratch.join());
    }
}

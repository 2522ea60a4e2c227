//! Removing a group without losing a member that is just joining.

use super::lock::{self, Bytes, Description};
use super::{Ledger, LedgerError};

/// While this lives nobody can claim a slot. Who is turned away finds the file gone and starts
/// over.
#[derive(Debug)]
pub struct Removal {
    file: Description,
}

pub(super) fn begin(ledger: &Ledger) -> Result<Removal, LedgerError> {
    let path = &ledger.place.path;
    let error = |error| LedgerError::io(path, "lock", error);
    let file = ledger.place.open(true)?;
    let removal = if lock::try_lock(&file, Bytes::CLAIMS).map_err(error)? {
        Some(Removal { file })
    } else {
        None
    };
    match removal {
        // Only now: a claimer takes the owner lock while it holds its claim lock.
        Some(removal) if !lock::is_locked(&removal.file, Bytes::OWNERS).map_err(error)? => {
            Ok(removal)
        }
        _ => Err(LedgerError::InUse { path: path.clone() }),
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

//! A root with one group in it and nothing else: what a container gets to see.
//!
//! Its files are those of the group, by hard links, so that whoever is in the one is in the other.

use super::root::make_directory;
use super::{Group, GroupError, context_size};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Permissions of directories: everybody in the container may look.
const DIRECTORY: u32 = 0o755;

impl Group {
    /// Makes such a root at `place`, which is not there, on the file system of the group's own;
    /// says which files in it members write.
    ///
    /// The groups above are in it, as far as their files go, and none below. What a context takes
    /// is known in it as in the group's own root.
    pub fn show_in(&self, place: &Path) -> Result<Vec<PathBuf>, GroupError> {
        let failed = |error| GroupError::io("create", place, error);
        fs::create_dir(place)
            .and_then(|()| fs::set_permissions(place, fs::Permissions::from_mode(DIRECTORY)))
            .map_err(failed)?;
        let mut ledgers = Vec::new();
        let path: Vec<_> = self.upwards().collect();
        for group in path.iter().rev() {
            let shown = Self::at(place, group.name());
            make_directory(shown.path(), DIRECTORY)?;
            make_directory(&shown.below_path(), DIRECTORY)?;
            for (there, here) in [
                (group.ledger_path(), shown.ledger_path()),
                (group.lock_path(), shown.lock_path()),
                (group.limits_path(), shown.limits_path()),
            ] {
                fs::hard_link(there, here).map_err(failed)?;
            }
            ledgers.push(shown.ledger_path());
        }
        context_size::copy(self.root(), place).map_err(failed)?;
        Ok(ledgers)
    }
}

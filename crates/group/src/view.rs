//! A container's view of the groups: a root that holds one group and the groups above it, for use
//! in a container.
//!
//! The ledger, lock and limits in a view are hard links to the group's own files. So a process that
//! joins the group in the view is a member of the group itself.

use super::root::make_directory;
use super::{Group, GroupError, context_size};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The permissions of a view's directories: all users in the container may read them.
const DIRECTORY: u32 = 0o755;

impl Group {
    /// Makes a view of this group at the path `place`. This path must not exist and must be on the
    /// group's file system. Returns the paths of those ledgers in the view that members write.
    ///
    /// The view has the files of this group and of the groups above it, but no groups below it. The
    /// sizes of contexts that the group's root has stored are copied into the view.
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

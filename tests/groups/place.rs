//! The directory in which tests of groups, of the controller and of policies have their groups.

use gpulimit_group::Root;
use gpulimit_support::Scratch;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A private directory with a root in it, which is removed when the value is dropped.
pub struct Place(pub Scratch);

impl Place {
    pub fn new() -> Self {
        let folder = Scratch::new();
        fs::set_permissions(&*folder, Permissions::from_mode(0o700)).expect("changed");
        Self(folder)
    }

    pub fn root_path(&self) -> PathBuf {
        self.0.join("root")
    }

    pub fn root(&self) -> Root {
        Root::at(self.root_path()).expect("a root")
    }
}

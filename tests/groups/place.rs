//! The directory in which tests of groups, of the controller and of policies have their groups.

use gpulimit_group::Root;
use gpulimit_support::Scratch;
use std::ops::Deref;
use std::path::PathBuf;

/// A directory with a root in it, which is removed when the value is dropped.
pub struct Place(pub Scratch);

impl Place {
    pub fn new() -> Self {
        Self(Scratch::new())
    }

    pub fn root_path(&self) -> PathBuf {
        self.0.join("root")
    }

    pub fn root(&self) -> Root {
        Root::at(self.root_path()).expect("a root")
    }
}

impl Deref for Place {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

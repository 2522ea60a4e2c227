//! The directory in which tests of groups, of the controller and of policies have their groups.

use gpulimit_group::Root;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A private directory with a root in it, which is removed when the value is dropped.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let (tests, pid) = (env!("CARGO_CRATE_NAME"), std::process::id());
        let path = std::env::temp_dir().join(format!("gpulimit-{tests}-{pid}-{next}"));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .expect("a temporary directory");
        Self(path)
    }

    pub fn root_path(&self) -> PathBuf {
        self.0.join("root")
    }

    pub fn root(&self) -> Root {
        Root::at(self.root_path()).expect("a root")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

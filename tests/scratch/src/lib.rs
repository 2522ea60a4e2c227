//! Temporary directories for tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// An empty temporary directory, which is removed when the value is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a temporary directory that no other test uses.
    #[expect(clippy::new_without_default, reason = "makes a directory")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpulimit-scratch-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("made");
        Self(path)
    }

    /// Returns the path of the file with this name in the temporary directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

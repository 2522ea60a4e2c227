//! A folder of a thread's own in memory, gone with the thread.

use std::path::{Path, PathBuf};

/// The folder.
pub struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let name = format!(
            "gpulimit-fuzz-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let folder = Path::new("/dev/shm").join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

thread_local! {
    static HERE: Scratch = Scratch::new();
}

/// A path in it, at which there is nothing.
pub fn path(name: &str) -> PathBuf {
    let path = HERE.with(|folder| folder.0.join(name));
    let _ = std::fs::remove_file(&path);
    path
}

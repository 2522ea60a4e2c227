//! A temporary folder for each thread, in memory, which is removed when the thread ends.

use std::path::{Path, PathBuf};

/// The folder of a thread.
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

/// Returns a path in this thread's temporary folder where no file exists.
pub fn path(name: &str) -> PathBuf {
    let path = HERE.with(|folder| folder.0.join(name));
    let _ = std::fs::remove_file(&path);
    path
}

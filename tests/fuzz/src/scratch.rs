//! A temporary folder for each thread, in memory, which is removed when the thread ends.

use std::path::PathBuf;

use gpulimit_support::Scratch;

thread_local! {
    static HERE: Scratch = Scratch::in_memory();
}

/// Returns a path in this thread's temporary folder where no file exists.
pub fn path(name: &str) -> PathBuf {
    let path = HERE.with(|folder| folder.at(name));
    let _ = std::fs::remove_file(&path);
    path
}

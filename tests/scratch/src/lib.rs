//! Temporary directories for tests.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An empty temporary directory, which is removed when the value is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a temporary directory that no other test uses.
    #[expect(clippy::new_without_default, reason = "makes a directory")]
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Makes such a directory in memory, where ledgers of groups usually are.
    pub fn in_memory() -> Self {
        Self::below(Path::new("/dev/shm"))
    }

    /// Makes such a directory below another one.
    pub fn below(folder: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("gpulimit-test-{}-{next}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // A killed test that had the same pid has left it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Returns the path of the file with this name in the temporary directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsRef<OsStr> for Scratch {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_a_killed_test_has_left_is_passed_over() {
        let folder = Scratch::new();
        let number = |scratch: &Scratch| {
            let name = scratch.file_name().and_then(OsStr::to_str);
            let (_, number) = name.and_then(|name| name.rsplit_once('-')).expect("a name");
            number.parse::<u32>().expect("a number")
        };
        let last = number(&Scratch::below(&folder));
        let pid = std::process::id();
        let left = folder.at(&format!("gpulimit-test-{pid}-{}", last + 1));
        fs::create_dir(&left).expect("made");
        assert_eq!(number(&Scratch::below(&folder)), last + 2);
        assert!(left.exists());
    }
}

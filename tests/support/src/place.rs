//! Temporary directories for tests.

use crate::executable;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Makes a directory that others may read, with a name that begins with the prefix and is unique.
/// No word and no figure can be in the rest of it: an assertion on a text in which the path stands
/// finds only what the program has said.
pub fn unique(folder: &Path, prefix: &str) -> io::Result<PathBuf> {
    loop {
        let rest = (0..8).map(|_| fastrand::choice(*b"jkqvwxyz").map(char::from));
        let path = folder.join(format!("{prefix}{}", rest.flatten().collect::<String>()));
        match DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

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
        let memory = Path::new("/dev/shm");
        // The run's folder there has the same name as in TMPDIR.
        let run = std::env::var_os("GPULIMIT_TEST_RUN").map(PathBuf::from);
        match run.as_deref().and_then(Path::file_name) {
            Some(name) => Self::below(&memory.join(name)),
            None => Self::below(memory),
        }
    }

    /// Makes such a directory below another one.
    pub fn below(folder: &Path) -> Self {
        let made = unique(folder, "gpulimit-test-");
        Self(made.unwrap_or_else(|error| panic!("{}: {error}", folder.display())))
    }

    /// Returns the path of the file with this name in the temporary directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, and makes the directories above it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.above(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Writes an executable script in place of any file or link, and makes the directories above.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.above(name);
        executable::script(&path, text);
        path
    }

    /// Makes the directories above the file with this name, and returns its path.
    fn above(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        path
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

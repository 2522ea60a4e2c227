//! Files that every program of the machine depends on: replaced as a whole, or put back.

use crate::failure::Failure;
use crate::replace;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What the system refused.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ": run it as root",
        _ => "",
    };
    Failure::new(format_args!(
        "cannot {what} {}: {error}{remedy}",
        path.display()
    ))
}

/// Makes the directory that a file is in, and those above it, for all to use.
pub fn make_directories(file: &Path) -> Result<&Path, Failure> {
    let directory = file.parent().unwrap_or(file);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|error| failed("create", directory, &error))?;
    Ok(directory)
}

/// Gives the name to a new file with this content. Who has the old one open or mapped keeps it.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    replace::replace(path, &draft, bytes, mode).map_err(|error| failed("write", path, &error))?;
    // The name, too, is to survive a loss of power. The change is done where a file system cannot
    // promise that.
    if let Some(directory) = path.parent().and_then(|path| File::open(path).ok()) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Writes a file that a user names. A regular file is replaced as a whole; what else has the name,
/// as a device, a pipe or a link, is written through and stays what it is.
pub fn write_named(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() => {
            let mut options = OpenOptions::new();
            // A link may lead to a regular file, or to none yet.
            options.write(true).create(about.is_symlink()).mode(mode);
            options
                .truncate(about.is_symlink())
                .open(path)
                .and_then(|mut file| file.write_all(bytes))
                .map_err(|error| failed("write", path, &error))
        }
        _ => replace(path, bytes, mode),
    }
}

/// A file with a new content, and the one that it had.
#[must_use]
pub struct Written<'a> {
    path: PathBuf,
    before: Option<&'a str>,
}

impl<'a> Written<'a> {
    /// Replaces the content; `before` is what it was, `None`: there was no file.
    pub fn new(path: &Path, before: Option<&'a str>, text: &str) -> Result<Self, Failure> {
        make_directories(path)?;
        replace(path, text.as_bytes(), 0o644)?;
        Ok(Self {
            path: path.into(),
            before,
        })
    }

    /// It stays.
    pub fn keep(self) {}

    /// It stays if all is well with it; else what was before is put back.
    pub fn keep_if(self, well: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let Err(failure) = well() else {
            return Ok(());
        };
        let back = match self.before {
            Some(text) => replace(&self.path, text.as_bytes(), 0o644),
            None => {
                fs::remove_file(&self.path).map_err(|error| failed("remove", &self.path, &error))
            }
        };
        match back {
            Ok(()) => Err(Failure::new(format_args!(
                "{failure}: {} is as it was",
                self.path.display()
            ))),
            Err(again) => Err(Failure::new(format_args!(
                "{failure}; and it could not be put back: {again}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_scratch::Scratch;

    #[test]
    fn what_was_there_is_put_back() {
        let scratch = Scratch::new();
        let path = scratch.at("ld.so.preload");
        let refuse = || Err(Failure::new("programs do not start"));
        let fresh = Written::new(&path, None, "new\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new\n");
        let error = fresh.keep_if(refuse).expect_err("refused").to_string();
        assert!(
            error.contains("do not start") && error.contains("as it was"),
            "{error}"
        );
        assert!(!path.exists());
        fs::write(&path, "others\n").expect("written");
        let changed = Written::new(&path, Some("others\n"), "new\nothers\n").expect("written");
        changed.keep_if(refuse).expect_err("refused");
        assert_eq!(fs::read_to_string(&path).expect("there"), "others\n");
        let changed = Written::new(&path, Some("others\n"), "new\n").expect("written");
        changed.keep_if(|| Ok(())).expect("kept");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new\n");
        assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 1);
    }
}

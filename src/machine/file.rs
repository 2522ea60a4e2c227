//! Changes files that every program depends on. Each file is changed as a whole, or not at all.

use crate::words::failure::{Failure, cannot};
use clap::builder::{PathBufValueParser, TypedValueParser};
use gpulimit_base::replace;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Like [`cannot`], but adds the hint to run the command as root if access was denied.
pub fn failed<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> Failure + 'a {
    move |error| {
        use ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let denied = matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem);
        let failure = cannot(what, path)(error);
        match denied {
            true => Failure::new(format_args!("{failure}: run the command as root")),
            false => failure,
        }
    }
}

/// Returns a parser of absolute paths on the command line.
pub fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    let check = |path: PathBuf| match path.is_absolute() {
        true => Ok(path),
        false => Err("expected an absolute path"),
    };
    PathBufValueParser::new().try_map(check)
}

/// Makes the directory of a file, and the directories above it.
pub fn make_directories(file: &Path) -> Result<(), Failure> {
    file.parent().map_or(Ok(()), make_directory)
}

/// Makes a directory and the directories above it, readable by all users whatever the umask says.
pub fn make_directory(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Ok(());
    }
    make_directories(path)?;
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(failed("create", path))
}

/// Replaces a file. Processes that have opened or mapped the old file keep the old content.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    replace::replace(path, &draft, bytes, mode).map_err(failed("write", path))?;
    // Makes the new file survive a loss of power. Ignores errors, because the file is already
    // replaced.
    if let Some(directory) = path.parent().and_then(|path| File::open(path).ok()) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Writes to a path that a user gave. Replaces a regular file as a whole; writes through any other
/// file.
pub fn write_named(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() => {
            // Creates or truncates a file behind a symbolic link, but not a device or a pipe.
            let link = about.is_symlink();
            let mut options = OpenOptions::new();
            options.write(true).create(link).truncate(link).mode(mode);
            let written = options
                .open(path)
                .and_then(|mut file| file.write_all(bytes));
            written.map_err(failed("write", path))
        }
        _ => replace(path, bytes, mode),
    }
}

/// Writes `text` to a file and runs `check`. On failure restores the content `before`; `None` means
/// no file.
pub fn change(
    path: &Path,
    before: Option<&str>,
    text: &str,
    check: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    make_directories(path)?;
    replace(path, text.as_bytes(), 0o644)?;
    let Err(failure) = check() else {
        return Ok(());
    };
    let restored = match before {
        Some(text) => replace(path, text.as_bytes(), 0o644),
        None => fs::remove_file(path).map_err(failed("remove", path)),
    };
    Err(match restored {
        Ok(()) => Failure::new(format_args!("{failure}: {} was restored", path.display())),
        Err(again) => Failure::new(format_args!(
            "{failure}; the former content of the file could not be restored: {again}"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;

    #[test]
    fn a_failed_check_restores_the_file() {
        let scratch = Scratch::new();
        let path = scratch.at("ld.so.preload");
        let refuse = || {
            assert_eq!(fs::read_to_string(&path).expect("there"), "new\n");
            Err(Failure::new("programs do not start"))
        };
        let error = change(&path, None, "new\n", refuse);
        let error = error.expect_err("refused").to_string();
        assert!(
            error.contains("do not start") && error.contains("was restored"),
            "{error}"
        );
        assert!(!path.exists());
        fs::write(&path, "others\n").expect("written");
        change(&path, Some("others\n"), "new\n", refuse).expect_err("refused");
        assert_eq!(fs::read_to_string(&path).expect("there"), "others\n");
        change(&path, Some("others\n"), "new\n", || Ok(())).expect("kept");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new\n");
        assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 1);
    }
}

//! Decides which directories are trusted: those in which other users cannot replace files.

use super::directory::Directory;
use super::error::{Fault, GroupError};
use super::user;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that a directory belongs to the caller or to root, and that other users cannot write it.
/// Root accepts all owners.
pub(super) fn check(path: &Path) -> Result<fs::Metadata, GroupError> {
    let about = fs::symlink_metadata(path).map_err(|error| GroupError::io("open", path, error))?;
    is_safe(path, &about).map(|()| about)
}

/// Does the same as [`check`] for a directory that is already open.
pub(super) fn check_open(directory: &Directory) -> Result<fs::Metadata, GroupError> {
    let path = directory.path();
    let about = directory
        .about()
        .map_err(|error| GroupError::io("open", path, error))?;
    is_safe(path, &about).map(|()| about)
}

fn is_safe(path: &Path, about: &fs::Metadata) -> Result<(), GroupError> {
    let me = user::effective();
    let mode = about.mode() & 0o7777;
    let sticky = about.uid() == 0 && mode & 0o1000 != 0;
    let why = if about.is_symlink() {
        Fault::Symlink
    } else if !about.is_dir() {
        Fault::NotDirectory
    } else if about.uid() != 0 && about.uid() != me && me != 0 {
        Fault::Owner(about.uid())
    } else if mode & 0o022 != 0 && !sticky {
        Fault::Writable(mode)
    } else {
        return Ok(());
    };
    Err(GroupError::Unsafe {
        path: path.into(),
        why,
    })
}

//! The record of the groups that `gpulimit apply` made. `apply` removes a group only if the record
//! lists it.

use crate::words::failure::{Failure, cannot};
use gpulimit_base::{missing::found, replace, text_file};
use gpulimit_group::{Root, check_name};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// The record's file, in the root of the groups. Groups cannot have this name.
const FILE: &str = ".managed";

const HEAD: &str = "gpulimit-managed 1";
/// The maximum length of the record in bytes. A policy's group names need far less.
const LONGEST: u64 = 64 << 20;

/// Reads the names of the groups that the record lists.
pub fn read(root: &Root) -> Result<BTreeSet<String>, Failure> {
    let path = root.path().join(FILE);
    let read = text_file::read(&path, LONGEST)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let Some(text) = found(read).map_err(cannot("read", &path))? else {
        return Ok(BTreeSet::new());
    };
    let mut lines = text.lines();
    let head = lines.next() == Some(HEAD);
    let names: BTreeSet<String> = lines.map(str::to_owned).collect();
    if head && names.iter().all(|name| check_name(name).is_ok()) {
        return Ok(names);
    }
    Err(Failure::new(format_args!(
        "{} is damaged and no longer says which groups an earlier apply made: remove the file, and \
         use `gpulimit rm` to remove the groups that you no longer need",
        path.display()
    )))
}

/// Replaces the record by one that lists these names.
pub fn write(root: &Root, names: &BTreeSet<String>) -> Result<(), Failure> {
    let mut text = format!("{HEAD}\n");
    for name in names {
        text += name;
        text.push('\n');
    }
    replace(&root.path().join(FILE), &text)
}

/// Replaces a file as a whole. The caller must hold the lock of `apply`, which protects the
/// temporary file.
pub fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    replace::replace(path, Path::new(&draft), text.as_bytes(), 0o644).map_err(cannot("write", path))
}

/// Removes a file. A file that does not exist counts as removed.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let removed = found(fs::remove_file(path));
    removed.map(drop).map_err(cannot("remove", path))
}

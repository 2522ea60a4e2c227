//! `run --explain`: PyTorch notes what it holds when it runs out of memory, for `gpulimit why`.
//!
//! Programs in Python read a file of ours first, which waits until they import torch. It is written
//! to the caller's own root, since every way to install gpulimit has the controller.

use crate::machine::file;
use crate::words::environment::env;
use crate::words::failure::{Failure, cannot};
use gpulimit_group::Root;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

/// Runs in each Python as its `sitecustomize`.
const MODULE: &str = include_str!("../../../python/gpulimit/_explain.py");
/// The variable with the folders in which Python looks for modules.
const PATH: &str = "PYTHONPATH";
/// The variable that names the folder for the notes.
const NOTES: &str = "GPULIMIT_EXPLAIN";

/// Writes the file, which running programs may read meanwhile, and returns the variables for the
/// command.
pub fn begin() -> Result<[(&'static str, OsString); 2], Failure> {
    let root = Root::locate(&env)?;
    let folder = root.path().join(".python");
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.map_err(cannot("write to", &folder))?;
    file::replace(&folder.join("sitecustomize.py"), MODULE.as_bytes(), 0o644)?;
    let mut path = OsString::from(folder);
    if let Some(theirs) = env(PATH).filter(|theirs| !theirs.is_empty()) {
        path.push(":");
        path.push(theirs);
    }
    Ok([(PATH, path), (NOTES, root.path().into())])
}

//! Reports whether a program loads the library when it starts.

use super::finding::{Check, Finding};
use crate::machine::{elf, program};
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const CHECK: Check = Check("program");

/// Checks the program with this name or path.
pub(super) fn checks(name: &OsStr) -> Vec<Finding> {
    let Some(path) = program::find(name) else {
        let text = format!("no such command in PATH: {}", name.display());
        return vec![CHECK.error(text, "check the spelling, or give a path")];
    };
    look(&path).unwrap_or_else(|error| {
        let text = format!("cannot read {}: {error}", path.display());
        vec![CHECK.error(text, "check the path, and that you may read the file")]
    })
}

fn look(path: &Path) -> io::Result<Vec<Finding>> {
    let (loaded, file) = program::loaded(path)?;
    let mut findings = Vec::new();
    if loaded != path {
        let text = format!("{} is a script of {}", path.display(), loaded.display());
        findings.push(CHECK.fine(text));
    }
    if let Some((text, remedy)) = program::unable(&elf::kind(&file)?) {
        findings.push(CHECK.error(text, remedy));
        return Ok(findings);
    }
    if file.metadata()?.permissions().mode() & 0o6000 != 0 {
        findings.push(CHECK.warning(
            "the program runs with the rights of its owner, so the dynamic linker ignores \
             LD_PRELOAD",
            "load the library into every program with `gpulimit install`",
        ));
    }
    let text = format!("{} can load the library", loaded.display());
    findings.push(CHECK.fine(text));
    Ok(findings)
}

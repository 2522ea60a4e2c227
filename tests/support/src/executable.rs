//! Makes programs and scripts that a test starts.
//!
//! Another process writes the files: a file that is open for writing cannot be executed
//! (`ETXTBSY`), and a child that another test forks inherits this process's open files until its
//! exec.

use crate::{Scratch, fed};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a C program or library of this name, which the compiler makes from the
/// source unless the folder (`CARGO_TARGET_TMPDIR`) already has it: each test is a process, and
/// most of them need the same few files.
pub fn compiled(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (std::env::consts::ARCH, name, source, options).hash(&mut hasher);
    let place = folder.join(format!("compiled-{:016x}", hasher.finish()));
    let path = place.join(name);
    if !path.exists() {
        let draft = Scratch::below(folder);
        let mut compiler = Command::new("cc");
        compiler.args(options).args(["-x", "c", "-", "-o"]);
        let output = fed(compiler.arg(draft.at(name)), source);
        assert!(output.status.success(), "{source}: {output:?}");
        // If another test has compiled the same file meanwhile, that file stays.
        let renamed = fs::rename(&draft, &place);
        assert!(path.exists(), "{}: {renamed:?}", path.display());
    }
    path
}

/// Copies a program, and replaces any file at the target.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("install")
        .args(["-m", "755", "--"])
        .args([from, to])
        .status();
    let copied = status.is_ok_and(|status| status.success());
    assert!(copied, "{} to {}", from.display(), to.display());
}

/// Writes an executable script, and replaces any file at the path.
pub fn script(path: &Path, text: &str) {
    let mut install = Command::new("install");
    let output = fed(install.args(["-m", "755", "/dev/stdin"]).arg(path), text);
    assert!(output.status.success(), "{}: {output:?}", path.display());
}

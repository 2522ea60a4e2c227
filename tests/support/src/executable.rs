//! Makes programs and scripts that a test starts.
//!
//! Another process writes the files: a file that is open for writing cannot be executed
//! (`ETXTBSY`), and a child that another test forks inherits this process's open files until its
//! exec.

use crate::Scratch;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
        let mut compiler = Command::new("cc")
            .args(options)
            .args(["-x", "c", "-", "-o"])
            .arg(draft.at(name))
            .stdin(Stdio::piped())
            .spawn()
            .expect("a C compiler");
        let mut input = compiler.stdin.take().expect("a pipe");
        input.write_all(source.as_bytes()).expect("written");
        drop(input);
        assert!(compiler.wait().expect("ended").success(), "{source}");
        // Of two tests that compile at once, the first one's file stays.
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
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install");
    let mut input = install.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    let status = install.wait().expect("ended");
    assert!(status.success(), "{}", path.display());
}

//! Makes programs and scripts that a test starts.
//!
//! Another process writes the files: a file that is open for writing cannot be executed
//! (`ETXTBSY`), and a child that another test forks inherits this process's open files until its
//! exec.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

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

//! Programs and scripts that a test makes and starts.
//!
//! Another process writes them: what is open for writing cannot be started (`ETXTBSY`), and a child
//! that another test forks has, until it becomes another program, everything open that this process
//! has.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A copy of a program, in the place of what is there.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("install")
        .args(["-m", "755", "--"])
        .args([from, to])
        .status();
    let copied = status.is_ok_and(|status| status.success());
    assert!(copied, "{} to {}", from.display(), to.display());
}

/// A script, in the place of what is there.
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

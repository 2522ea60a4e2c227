//! Tests that cannot run on this machine.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

/// Says that the calling test, or a part of it, is left out, and why. The test returns then. A
/// strict run of `scripts/test` fails if `tests/skips.txt` does not list the test.
#[track_caller]
pub fn skip(why: impl std::fmt::Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    eprintln!("SKIPPED: {test}: {why}");
    if let Some(run) = std::env::var_os("GPULIMIT_TEST_RUN") {
        let path = PathBuf::from(run).join("skips");
        let file = File::options().create(true).append(true).open(path);
        // One write, so that lines of several tests do not mix.
        let line = format!("{test}: {why}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the skip is noted");
    }
}

/// Returns whether a program is installed; skips if not.
#[track_caller]
pub fn have(program: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "command -v -- \"$1\"", "sh", program]);
    let found = shell.output().is_ok_and(|output| output.status.success());
    if !found {
        skip(format_args!(
            "there is no {program} (scripts/test --install)"
        ));
    }
    found
}

/// Returns whether root runs the test; skips if not.
#[track_caller]
pub fn is_root() -> bool {
    let is_root = std::fs::metadata("/proc/self").expect("/proc").uid() == 0;
    if !is_root {
        skip("takes root");
    }
    is_root
}

/// Returns whether `unshare` can make namespaces by these options; skips if not.
#[track_caller]
pub fn may_unshare(options: &[&str]) -> bool {
    let mut unshare = Command::new("unshare");
    let tried = unshare.args(options).args(["--fork", "true"]).output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        skip(format_args!("unshare {options:?} takes root"));
    }
    may
}

/// Returns whether the test may mount in a namespace of its own; skips if not.
#[track_caller]
pub fn may_mount() -> bool {
    may_unshare(&["--mount"])
}

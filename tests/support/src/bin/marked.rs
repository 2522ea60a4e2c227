//! Runs a test in a place of its own: `gpulimit-marked PROGRAM ARGUMENT…`
//!
//! cargo and nextest start each test program by it (`CARGO_TARGET_…_RUNNER`). The program and all
//! its children get a `TMPDIR` of their own in the folder `GPULIMIT_TEST_RUN`, and the name of the
//! test in `GPULIMIT_TEST_NAME`: by these, `scripts/test` finds what a test leaves behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: gpulimit-marked PROGRAM ARGUMENT…");
        exit(2);
    };
    let arguments: Vec<_> = arguments.collect();
    let is_listing = arguments.iter().any(|argument| argument == "--list");
    let mut command = Command::new(&program);
    command.args(&arguments);
    if let (Some(run), false) = (std::env::var_os("GPULIMIT_TEST_RUN"), is_listing) {
        let binary = Path::new(&program)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let binary = binary.rsplit_once('-').map_or(&*binary, |(name, _)| name);
        let exact = arguments.iter().position(|argument| argument == "--exact");
        let test = exact
            .and_then(|at| arguments.get(at + 1))
            .map(|test| test.to_string_lossy());
        let name = test.map_or(binary.to_owned(), |test| format!("{binary} {test}"));
        match place(Path::new(&run), &name) {
            Ok(place) => command.env("TMPDIR", place).env("GPULIMIT_TEST_NAME", name),
            Err(error) => {
                eprintln!("gpulimit-marked: {}: {error}", Path::new(&run).display());
                exit(1);
            }
        };
    }
    let error = command.exec();
    eprintln!("gpulimit-marked: {}: {error}", program.display());
    exit(127);
}

/// Makes a directory that every user may write, as `/tmp`, and notes whose it is.
fn place(run: &Path, name: &str) -> std::io::Result<PathBuf> {
    let place = gpulimit_support::unique(run, "")?;
    fs::set_permissions(&place, Permissions::from_mode(0o1777))?;
    fs::write(place.with_extension("name"), name)?;
    Ok(place)
}

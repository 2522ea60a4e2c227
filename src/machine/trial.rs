//! Tests whether programs start with libgpulimit.so, and finds the processes that have loaded it.

use super::{child::What, look};
use crate::words::failure::Failure;
use gpulimit_base::identity::SeenProcess;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a harmless program with the library preloaded and all its symbols bound, so that missing
/// symbols are errors.
pub fn with(library: &Path) -> Result<(), Failure> {
    let mut command = true_command();
    command.env("LD_PRELOAD", library).env("LD_BIND_NOW", "1");
    run_silently(command).map_err(|how| {
        Failure::new(format_args!(
            "{} cannot be used here: with this library preloaded, {how}; build or install the \
             library for this machine",
            library.display()
        ))
    })
}

/// Runs a harmless program without LD_PRELOAD, so that /etc/ld.so.preload decides which libraries
/// are loaded.
pub fn plain() -> Result<(), Failure> {
    run_silently(true_command())
        .map_err(|how| Failure::new(format_args!("the installed library does not work: {how}")))
}

/// Returns a harmless command: `true`, or this program with `--version` if `true` is missing.
fn true_command() -> Command {
    let mut programs = ["/bin/true", "/usr/bin/true"].into_iter();
    let mut command = match programs.find(|path| Path::new(path).exists()) {
        Some(program) => Command::new(program),
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg("--version");
            command
        }
    };
    command.env_clear().stdin(Stdio::null());
    command
}

fn run_silently(mut command: Command) -> Result<(), String> {
    let program = command.get_program().display().to_string();
    let output = command
        .output()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim() {
        "" if output.status.success() => Ok(()),
        "" => Err(format!("{program} ends with {}", output.status)),
        said => Err(format!("{program} says '{said}'")),
    }
}

/// Returns the pids of inspectable processes that have mapped this library, and of processes not
/// read in time.
pub fn users(library: &Path) -> Result<(Vec<u32>, Vec<u32>), Failure> {
    let own = std::process::id();
    let pids: Vec<u32> = SeenProcess::numbers().filter(|pid| *pid != own).collect();
    let answers = look::ask(
        (What::Uses, Some(library.as_ref())),
        &pids,
        look::patience(),
    );
    let answers = answers.map_err(|error| {
        Failure::new(format_args!(
            "cannot see which processes use {}: {error}",
            library.display()
        ))
    })?;
    let runs = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    let silent = pids
        .iter()
        .filter(|pid| !answers.contains_key(pid) && runs(pid));
    let users = answers.iter().filter(|(_, answer)| *answer == "yes");
    Ok((
        users.map(|(pid, _)| *pid).collect(),
        silent.copied().collect(),
    ))
}

/// Returns whether a process has mapped this library. May block forever, because the process's user
/// can hold a lock.
pub fn uses(pid: u32, library: &Path) -> io::Result<bool> {
    let inode = fs::metadata(library)?.ino().to_string();
    let name = library.display().to_string();
    let maps = fs::File::open(format!("/proc/{pid}/maps"))?;
    // Read line by line, because the process's user decides how long the memory map is.
    let mut lines = BufReader::new(maps).split(b'\n').map_while(Result::ok);
    Ok(lines.any(|line| {
        let line = String::from_utf8_lossy(&line);
        let mut fields = line.split_ascii_whitespace().skip(4);
        // A file that was replaced after it was mapped has another inode, and its path ends with
        // "(deleted)".
        fields.next() == Some(inode.as_str()) && fields.next() == Some(name.as_str())
    }))
}

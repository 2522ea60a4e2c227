//! Whether programs start with the library, and which have it.

use super::super::failure::Failure;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts a program that has nothing to do with GPUs, with the library and with all its symbols bound at once.
pub fn with(library: &Path) -> Result<(), Failure> {
    let mut command = harmless()?;
    command.env("LD_PRELOAD", library).env("LD_BIND_NOW", "1");
    quiet(command).map_err(|how| {
        Failure::new(format_args!(
            "{} cannot be used here: with it, {how}: build or install it for this machine",
            library.display()
        ))
    })
}

/// Starts a program as everybody does.
pub fn plain() -> Result<(), Failure> {
    quiet(harmless()?).map_err(|how| Failure::new(format_args!("with the library in place, {how}")))
}

fn harmless() -> Result<Command, Failure> {
    let program = ["/bin/true", "/usr/bin/true"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .ok_or_else(|| Failure::new("there is no /bin/true to try the library with"))?;
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null());
    Ok(command)
}

fn quiet(mut command: Command) -> Result<(), String> {
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

/// The processes that have this file mapped, as far as we may look.
pub fn users(library: &Path) -> Vec<u32> {
    let Ok(about) = fs::metadata(library) else {
        return Vec::new();
    };
    let inode = about.ino().to_string();
    let name = library.display().to_string();
    let maps = |pid: u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(4);
            // One that was replaced has another inode, and a name that says so.
            fields.next() == Some(inode.as_str()) && fields.next() == Some(name.as_str())
        })
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && maps(*pid))
        .collect();
    pids.sort_unstable();
    pids
}

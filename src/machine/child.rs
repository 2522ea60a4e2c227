//! Asks questions of `gpulimit __probe`, a child process that may crash in a driver or a library.

use gpulimit_base::device::DeviceId;
use gpulimit_policy as policy;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// The name of the hidden verb with which gpulimit starts its child processes.
pub const VERB: &str = "__probe";

/// Runs `gpulimit __probe` in a child process and returns its `key value` lines. The error says how
/// the child failed.
pub fn ask(what: &str, preload: Option<&Path>) -> Result<Vec<(String, String)>, String> {
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.arg(VERB).arg(what).stdin(Stdio::null());
    // Remove the variables that select a group: a group's limits would change the answers about the
    // driver and the library.
    for name in policy::JOB_VARIABLES.iter().chain([&policy::GROUP]) {
        command.env_remove(name);
    }
    match preload {
        Some(library) => command.arg(library).env("LD_PRELOAD", library),
        None => command.env_remove("LD_PRELOAD"),
    };
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!(
            "{}{}{said}",
            output.status,
            if said.is_empty() { "" } else { ": " }
        ));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.to_owned()))
    };
    Ok(text.lines().filter_map(pair).collect())
}

/// Returns the UUIDs of the GPUs that a CUDA program in this environment sees. Empty if the driver
/// does not answer.
pub fn visible_gpus() -> Vec<[u8; 16]> {
    let answers = ask("gpus", None).unwrap_or_default().into_iter();
    let gpus = answers.filter(|(key, _)| key == "gpu");
    gpus.filter_map(|(_, id)| Some(id.parse::<DeviceId>().ok()?.uuid))
        .collect()
}

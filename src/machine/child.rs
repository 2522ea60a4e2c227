//! Asks questions of `gpulimit __probe`, a child process that may crash in a driver or a library.

use clap::ValueEnum;
use gpulimit_base::device::DeviceId;
use gpulimit_policy as policy;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// The name of the hidden verb with which gpulimit starts its child processes.
pub const VERB: &str = "__probe";

/// The question that a child process answers.
#[derive(Copy, Clone, clap::ValueEnum)]
pub enum What {
    /// The version of the CUDA driver, and whether the driver works.
    Driver,
    /// The GPUs that CUDA shows.
    Gpus,
    /// The facts about the preloaded libgpulimit.so and its hooks.
    Preload,
    /// The reason why this machine cannot suspend processes; no answer if it can.
    Checkpoints,
    /// The findings of `gpulimit doctor --pid` about a running process.
    Process,
    /// For each pid on standard input: whether the process is a member of this ledger's group,
    /// `yes`, `no` or [`super::look::DENIED`].
    Member,
    /// For each pid on standard input: whether the process has mapped this file, `yes` or `no`.
    Uses,
    /// For each pid on standard input: the beginning of the process's command line, in hexadecimal
    /// digits.
    Command,
    /// For each pid on standard input: the obstacles to suspending the process that its memory,
    /// memory map and environment show, as [`super::obstacles::answer`] writes them.
    Contents,
    /// For each pid on standard input: the facts that tell whether the process is in a group, a
    /// [`super::look::Candidate`] as JSON.
    Candidate,
}

impl What {
    /// Returns the argument of [`VERB`].
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The `key value` lines that a child process has written.
#[derive(Default)]
pub struct Answers(String);

impl Answers {
    /// Returns the value of the first line with this key.
    pub fn get<'a>(&'a self, key: &'a str) -> Option<&'a str> {
        self.all(key).next()
    }

    /// Returns the values of all lines with this key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines.filter_map(move |(there, value)| (there == key).then_some(value))
    }
}

/// Runs `gpulimit __probe` in a child process and returns its answers. The error says how the child
/// failed.
pub fn ask(what: What, preload: Option<&Path>) -> Result<Answers, String> {
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.arg(VERB).arg(what.name()).stdin(Stdio::null());
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
        let said = String::from_utf8_lossy(&output.stderr);
        let (said, status) = (said.trim(), output.status);
        let colon = if said.is_empty() { "" } else { ": " };
        return Err(format!("{status}{colon}{said}"));
    }
    Ok(Answers(
        String::from_utf8_lossy(&output.stdout).into_owned(),
    ))
}

/// Returns the GPUs that CUDA calls integrated, with the bytes of memory that it shows of each.
pub fn integrated_gpus() -> Vec<(DeviceId, u64)> {
    let answers = ask(What::Gpus, None).unwrap_or_default();
    let lines = answers.all("integrated");
    let gpu = |line: &str| {
        let (id, bytes) = line.split_once(' ')?;
        Some((id.parse().ok()?, bytes.parse().ok()?))
    };
    lines.filter_map(gpu).collect()
}

/// Returns the UUIDs of the GPUs that a CUDA program in this environment sees. Empty if the driver
/// does not answer.
pub fn visible_gpus() -> Vec<[u8; 16]> {
    let answers = ask(What::Gpus, None).unwrap_or_default();
    let gpus = answers.all("gpu");
    gpus.filter_map(|id| Some(id.parse::<DeviceId>().ok()?.uuid))
        .collect()
}

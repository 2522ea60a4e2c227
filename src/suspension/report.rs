//! What `suspend` and `resume` print.

use super::subjects::Subject;
use crate::groups::SCHEMA;
use crate::shown::output::{self, Escaped};
use crate::words::failure::Failure;
use gpulimit_base::units::gib;
use gpulimit_ledger::Errand;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Fails if all processes of a set have ended.
pub fn check_some_live(subjects: &[Subject]) -> Result<(), Failure> {
    match !subjects.is_empty() && subjects.iter().all(Subject::is_gone) {
        true => Err(Failure::new(
            "all processes have ended or called exec meanwhile",
        )),
        false => Ok(()),
    }
}

/// Prints the state of each process of a set after the work, in text or JSON. `before` are their
/// suspended bytes before the work, `known` has pids with states that ledgers do not tell
/// (`killed`, `locked` by another program), and `group` is the group that the caller named. The
/// exit status is 1 if a process is lost or locked.
pub fn report(
    subjects: &[Subject],
    before: &[u64],
    known: &[(u32, &'static str)],
    group: Option<&str>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut lines = String::new();
    let mut entries = Vec::new();
    let mut status = ExitCode::SUCCESS;
    for (subject, before) in subjects.iter().zip(before) {
        let known = known.iter().find(|(pid, _)| *pid == subject.target.pid);
        let state = known.map_or_else(|| state(subject), |(_, state)| state);
        let bytes = subject.suspended().max(*before);
        if matches!(state, "locked" | "lost" | "killed") {
            status = ExitCode::FAILURE;
        }
        if state == "lost" {
            // Any member can write that a process is lost. `--kill-lost` asks the driver.
            output::note(&format!(
                "{name} is lost: `gpulimit resume --pid {pid} --kill-lost` ends it, unless the \
                 driver brings it back after all",
                name = subject.name(),
                pid = subject.target.pid
            ));
        }
        let _ = writeln!(
            lines,
            "{group}: {name}: {state}{bytes}",
            group = subject.group.name(),
            name = Escaped(&subject.name()),
            // A process that was not suspended has no bytes to tell of.
            bytes = match bytes {
                0 => String::new(),
                bytes => format!(", {}", gib(bytes)),
            }
        );
        entries.push(entry(subject, state, bytes));
    }
    match (json, group) {
        (true, _) => {
            output::json(&json!({ "schema": SCHEMA, "processes": entries }))?;
        }
        (false, Some(group)) if subjects.is_empty() => {
            output::note(&format!("no process uses a GPU in group '{group}'"));
        }
        (false, _) => output::print(&lines)?,
    }
    Ok(status)
}

/// Returns the state of a process: `running`, `waiting`, `suspended`, `frozen`, `locked`, `lost` or
/// `ended`.
fn state(subject: &Subject) -> &'static str {
    match subject.errand() {
        _ if subject.is_gone() => "ended",
        (Errand::Lost, _) => "lost",
        (_, true) if subject.is_stopped() => "frozen",
        _ if subject.is_suspended() => "suspended",
        // The process was left half-done: its memory is back, and its calls of CUDA wait.
        (Errand::Suspend | Errand::Resume, _) => "locked",
        _ if subject.bytes(None) == 0 && subject.waits() => "waiting",
        _ => "running",
    }
}

fn entry(subject: &Subject, state: &str, bytes: u64) -> Value {
    json!({
        "group": subject.group.name(),
        "pid": subject.target.pid,
        "command": subject.identity().command().to_string(),
        "state": state,
        "bytes": bytes,
    })
}

//! `gpulimit doctor`: checks what works on this machine, and says how to fix what does not work.

mod checks;
mod container;
mod finding;
mod machine;
mod policy;
mod process;
mod program;
mod python;
mod root;
mod slurm;
mod suspension;
mod user;

use crate::groups::SCHEMA;
use crate::machine::library;
use crate::shown::output::{self, Escaped};
use crate::words::failure::Failure;
use finding::{Finding, Level};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Options of `doctor`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Check whether this program (a path, or a name in PATH) can load the library
    #[arg(value_name = "PROGRAM", conflicts_with_all = ["pid", "user", "container"])]
    program: Option<OsString>,

    /// Check the process with this pid: which group it is in, by which rule, and whether it has
    /// loaded the library (and if not, why)
    #[arg(long, value_name = "PID", conflicts_with_all = ["user", "container"])]
    pid: Option<u32>,

    /// Check the container with this id or name: its first process, and whether programs in the
    /// container load the library
    #[arg(long, value_name = "CONTAINER", conflicts_with = "user")]
    container: Option<String>,

    /// Print the group that the programs of this user get, and the rule that assigns the group
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The controller itself passes this option when it restarts without the library
    #[arg(long, hide = true)]
    preloaded: bool,
}

const HELP: &str = "\
Checks the driver, NVML, the library and its hooks, the groups, and the
environment; or one program, process, container or user. Makes a group to test
whether that works, and removes it; changes nothing else.

Examples:
  gpulimit doctor
  gpulimit doctor ./train             can this program have a limit?
  gpulimit doctor --pid 4711          why does this process have no limit?
  gpulimit doctor --container web     the same for a container
  gpulimit doctor --user alice        which group does she get?
  gpulimit doctor --json | jq '.findings[] | select(.level != \"ok\")'

Exit status: 0 when limits can be applied, 1 when something prevents it (a line
marked `error`).";

/// Checks a process and returns the findings as JSON. Call only in a child process, because reading
/// may block forever.
pub fn look_at(pid: u32) -> Value {
    json!(process::look(pid))
}

/// Returns what tells whether a process is in a group. Call only in a child process, because
/// reading may block forever.
pub use process::candidate;

/// Runs the checks and prints the findings.
pub fn doctor(args: &Args) -> Result<ExitCode, Failure> {
    let findings = match (&args.container, args.pid, &args.user) {
        (Some(name), ..) => match container::pid(name) {
            Ok((pid, found)) => [vec![found], process::checks(pid)].concat(),
            Err(found) => vec![found],
        },
        (_, Some(pid), _) => process::checks(pid),
        (.., Some(name)) => {
            let mut found = policy::checks();
            found.retain(|finding| finding.level != Level::Fine);
            [found, user::checks(name)].concat()
        }
        _ if let Some(name) = &args.program => program::checks(name),
        _ => checks::all(args.preloaded || library::is_loaded()),
    };
    let asked = (&args.container, args.pid, &args.user, &args.program);
    let here = matches!(asked, (None, None, None, None));
    let worst = findings.iter().map(|finding| finding.level).max();
    let worst = worst.unwrap_or(Level::Fine);
    let broken = worst == Level::Error;
    if args.json {
        output::json(&json!({ "schema": SCHEMA, "ok": !broken, "findings": findings }))?;
    } else {
        output::print(&text(&findings, worst, here))?;
    }
    Ok(ExitCode::from(u8::from(broken)))
}

/// Formats the findings for people. `worst` is the highest level among them; `here` is true if they
/// describe this machine.
fn text(findings: &[Finding], worst: Level, here: bool) -> String {
    let mut out = String::new();
    for Finding {
        check,
        level,
        text,
        remedy,
    } in findings
    {
        let line = format!("{level:<8} {check:<12} {}", Escaped(text));
        let _ = writeln!(out, "{}", output::fit(&line, 22));
        if let Some(remedy) = remedy {
            let line = format!("{:<21} -> {}", "", Escaped(remedy));
            let _ = writeln!(out, "{}", output::fit(&line, 25));
        }
    }
    out.push_str(match (worst, here) {
        (Level::Error, true) => "\nLimits cannot be applied here: see the lines marked `error`.\n",
        (Level::Error, false) => "\nThis limit cannot be applied: see the lines marked `error`.\n",
        (Level::Warning, true) => "\nLimits can be applied; see the lines marked `warning`.\n",
        (Level::Fine, true) => "\nLimits can be applied.\n",
        (_, false) => "",
    });
    out
}

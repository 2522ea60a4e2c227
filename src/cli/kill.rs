//! `gpulimit kill`: a signal for the processes of a group.

use super::failure::Failure;
use super::groups;
use super::nvml::Driver;
use super::pids::Pids;
use super::{output, signal};
use gpulimit::group::{Group, send};
use gpulimit::ledger::{EventKind, Happening, Ledger, NoWitness, ProcessUsage};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Options of `kill`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The group
    group: String,

    /// These processes of the group only
    #[arg(value_name = "PID")]
    pids: Vec<u32>,

    /// The signal, by name or number
    #[arg(long, short, default_value = "TERM", value_parser = signal::parse)]
    signal: i32,
}

const HELP: &str = "\
The processes of a group are those of the groups below it as well, and only those that have used
a GPU. PID is the number that `gpulimit ps` shows.

Examples:
  gpulimit kill lab
  gpulimit kill --signal KILL lab/alice
  gpulimit kill lab 4711";

/// Sends the signal.
pub fn kill(args: &Args) -> Result<ExitCode, Failure> {
    let group = groups::find(&args.group)?;
    let ledger = groups::readable(&group)?;
    let Some(ledger) = ledger else {
        return Err(groups::unreadable(group.ledger_path()));
    };
    let driver = Driver::load().ok();
    let pids = Pids::default();
    let mut processes = ledger.processes(groups::witness(driver.as_ref()));
    processes.retain(|process| process.alive);
    let pid = |process: &ProcessUsage| pids.here(&process.identity);
    for wanted in &args.pids {
        if !processes
            .iter()
            .any(|process| pid(process) == Some(*wanted))
        {
            return Err(Failure::new(format_args!(
                "no process {wanted} in group '{0}': `gpulimit ps {0}` lists them",
                args.group
            )));
        }
    }
    if !args.pids.is_empty() {
        processes.retain(|process| pid(process).is_some_and(|pid| args.pids.contains(&pid)));
    }
    if processes.is_empty() {
        output::note(&format!("no process uses a GPU in group '{}'", args.group));
    }
    let mut out = String::new();
    let mut status = ExitCode::SUCCESS;
    for process in &processes {
        let who = match pid(process) {
            Some(pid) => format!("{pid} ({})", process.identity.command()),
            None => format!("({})", process.identity.command()),
        };
        match send_to(&ledger, process, args.signal) {
            Ok(()) => {
                let name = signal::name(args.signal);
                // Writing to a string does not fail.
                let _ = writeln!(out, "{}: {name} sent to {who}", of(&group, process));
            }
            // Gone meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && pid(process).is_some() => {}
            Err(error) => {
                let why = match error.kind() {
                    ErrorKind::NotFound => "it cannot be seen from this container".into(),
                    ErrorKind::PermissionDenied => "it belongs to another user".into(),
                    _ => error.to_string(),
                };
                output::note(&format!("cannot signal {who}: {why}"));
                status = ExitCode::FAILURE;
            }
        }
    }
    output::print(&out)?;
    Ok(status)
}

/// The group that a process is in.
fn of(group: &Group, process: &ProcessUsage) -> String {
    match &*process.below {
        "" => group.name().into(),
        below => format!("{}/{below}", group.name()),
    }
}

/// Sends a signal; one that is to end the process is an event.
fn send_to(ledger: &Ledger, process: &ProcessUsage, signal: i32) -> std::io::Result<()> {
    send(&process.identity, signal)?;
    if matches!(signal, libc::SIGTERM | libc::SIGKILL) {
        let most = process.devices.iter().max_by_key(|usage| usage.charged);
        ledger.record(&Happening {
            kind: EventKind::Kill,
            device: most.map(|usage| usage.device),
            process: process.identity,
            bytes: most.map_or(0, |usage| usage.charged),
            charged: most.map_or(0, |usage| ledger.charged(usage.device)),
            max: u64::MAX,
        });
    }
    Ok(())
}

/// Kills all processes of a group; what stands in the way.
pub fn end_all(group: &Group, ledger: &Ledger) -> Option<Failure> {
    let processes = ledger.processes(&NoWitness);
    let mut failed = None;
    for process in processes.iter().filter(|process| process.alive) {
        match send_to(ledger, process, libc::SIGKILL) {
            // Gone, or not to be seen from here.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                failed = Some(Failure::new(format_args!(
                    "cannot kill {} ({}) in group '{}': {error}",
                    process.identity.pid,
                    process.identity.command(),
                    of(group, process)
                )));
            }
            _ => {}
        }
    }
    failed
}

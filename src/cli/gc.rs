//! `gpulimit gc`: removes what nobody needs any longer.

use super::failure::Failure;
use super::nvml::Driver;
use super::{env, groups, oci_hook, output};
use gpulimit::group::{Garbage, Root};
use gpulimit::ledger::Ledger;
use std::process::ExitCode;

/// Options of `gc`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {}

const HELP: &str = "\
Gives back what dead processes held, removes the groups of jobs that have ended, and what is left
of groups that were never made to the end, and what containers that are gone have left. Says what; nothing where there was nothing. What belongs
to others is left to them. `gpulimit run` does the same for groups of jobs.

Examples:
  gpulimit gc";

/// Cleans up, and says what was done.
pub fn gc(_: &Args) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let mut lines = Vec::new();
    for root in Root::locate_all(&env)? {
        lines.extend(clean(&root, driver.as_ref())?);
        for name in root.collect_garbage(Garbage::Everywhere)? {
            lines.push(format!("{name}: removed, its job has ended"));
        }
        for name in oci_hook::sweep(&root)? {
            lines.push(format!("{name}: removed, its container has ended"));
        }
        for path in root.remove_leftovers()? {
            lines.push(format!("{}: removed, was no group", path.display()));
        }
    }
    let line = |line: String| line + "\n";
    output::print(&lines.into_iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// Dead slots, a group a line.
fn clean(root: &Root, driver: Option<&Driver>) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for group in root.groups()? {
        // One that is not ours is its members' to clean.
        let Ok(ledger) = Ledger::open(&group.ledger_path()) else {
            continue;
        };
        let done = ledger.clean(groups::witness(driver));
        for (count, what) in [
            (done.cleaned, "given back"),
            (done.draining, "still held by the driver"),
        ] {
            if count > 0 {
                lines.push(format!(
                    "{}: memory of dead processes {what} ({count})",
                    group.name()
                ));
            }
        }
    }
    Ok(lines)
}

//! `gpulimit rm`: no group any longer.

use super::failure::Failure;
use super::kill::end_all;
use super::{groups, output};
use gpulimit::group::{Group, GroupError, Root};
use gpulimit::ledger::Ledger;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Options of `rm`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The groups
    #[arg(required = true)]
    groups: Vec<String>,

    /// Remove the groups below them, too
    #[arg(long, short)]
    recursive: bool,

    /// Kill the programs that run in them first
    #[arg(long, short)]
    force: bool,
}

const HELP: &str = "\
A group in which programs run, or with groups below it, stays, and nothing of it is removed.

Examples:
  gpulimit rm lab
  gpulimit rm --recursive lab
  gpulimit rm --recursive --force lab/alice lab/bob";

/// How long killed programs may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes the groups. What cannot be removed is said, and the others are.
pub fn rm(args: &Args) -> Result<ExitCode, Failure> {
    let mut status = ExitCode::SUCCESS;
    for name in &args.groups {
        if let Err(failure) = remove(name, args) {
            if args.groups.len() == 1 {
                return Err(failure);
            }
            output::note(&failure.to_string());
            status = ExitCode::FAILURE;
        }
    }
    Ok(status)
}

fn remove(name: &str, args: &Args) -> Result<(), Failure> {
    let root = groups::root_of(name)?;
    let group = root.group(name)?;
    if args.force {
        if !args.recursive
            && let Some(first) = root.groups_below(Some(&group))?.first()
        {
            return Err(GroupError::HasGroups {
                name: name.into(),
                below: first.name().into(),
            }
            .into());
        }
        drain(&group)?;
    }
    if args.recursive {
        all(&root, &group)
    } else {
        Ok(root.remove(name)?)
    }
}

/// Removes a group and those below it; nothing where a program runs in one of them.
fn all(root: &Root, group: &Group) -> Result<(), Failure> {
    // Who is in a group is in the ledgers of all above it.
    let used = match group.ledger() {
        Ok(ledger) => ledger.has_live(),
        Err(_) => Ledger::is_used(&group.ledger_path()),
    };
    if used {
        return Err(GroupError::InUse {
            name: group.name().into(),
        }
        .into());
    }
    let below = root.groups_within(group)?;
    for group in below.iter().rev().chain([group]) {
        match root.remove(group.name()) {
            // By somebody else, meanwhile.
            Err(error) if error.is_missing() => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Kills what runs in a group until nothing does.
fn drain(group: &Group) -> Result<(), Failure> {
    let ledger = group.ledger()?;
    let start = Instant::now();
    while ledger.has_live() {
        let failed = end_all(group, &ledger);
        if start.elapsed() > PATIENCE {
            return Err(failed.unwrap_or_else(|| {
                GroupError::InUse {
                    name: group.name().into(),
                }
                .into()
            }));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

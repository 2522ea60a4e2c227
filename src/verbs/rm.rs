//! `gpulimit rm`: removes groups.

use crate::groups::kill::{end_all, proven, remaining};
use crate::groups::{self, Purpose};
use crate::machine::look;
use crate::shown::output::{self, Answer};
use crate::words::{failure::Failure, notes::Change};
use gpulimit_base::patience;
use gpulimit_group::{Group, GroupError, Kind, Root};
use gpulimit_ledger::Ledger;
use std::cell::Cell;
use std::collections::BTreeSet;
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

    /// Also remove the groups below the named groups
    #[arg(long, short)]
    recursive: bool,

    /// First kill the programs that use a GPU in the groups
    #[arg(long, short)]
    force: bool,

    #[command(flatten)]
    answer: Answer,
}

const HELP: &str = "\
A group in which programs run, or with groups below it, is not removed. Groups
of ended jobs below a group are removed with it. With --force, too, a job's
group is not removed while a process of the job that has used no GPU could still
join it: only proven members are killed. The message names the process.

Examples:
  gpulimit rm lab
  gpulimit rm --recursive lab
  gpulimit rm --recursive --force lab/alice lab/bob";

/// Returns how long `rm --force` waits in total for the killed processes of all groups to end.
fn patience() -> Duration {
    patience::of("GPULIMIT_DEBUG_RM_MS", Duration::from_secs(10))
}

/// Removes the named groups. If one of several groups cannot be removed, reports it and continues
/// with the next.
pub fn rm(args: &Args) -> Result<ExitCode, Failure> {
    let mut status = ExitCode::SUCCESS;
    let end = Instant::now() + patience();
    let wait = Cell::new(LOCK_WAIT);
    let mut done = Vec::new();
    for name in &args.groups {
        if let Err(failure) = remove(name, args, end, &wait, &mut done) {
            if args.groups.len() == 1 {
                return Err(failure);
            }
            output::note(&failure.to_string());
            status = ExitCode::FAILURE;
        }
    }
    if args.answer.json {
        args.answer.tell(&done);
    } else if status != ExitCode::SUCCESS {
        let removed = |(name, _): &Change| format!("group '{name}' was removed");
        output::notes(&done.iter().map(removed).collect::<Vec<_>>());
    }
    Ok(status)
}

fn remove(
    name: &str,
    args: &Args,
    end: Instant,
    wait: &Cell<Duration>,
    done: &mut Vec<Change>,
) -> Result<(), Failure> {
    let (root, name) = groups::meant(name, Purpose::Use)?;
    let name = &*name;
    let group = groups::open(&root, name, Purpose::Use)?;
    if args.force {
        if !args.recursive
            && let below = root.groups_below(Some(&group))?
            && let Some((first, _)) = below
                .iter()
                .zip(Group::ended(&below))
                .find(|(_, ended)| !ended)
        {
            return Err(GroupError::HasGroups {
                name: name.into(),
                below: first.name().into(),
            }
            .into());
        }
        drain(&group, end)?;
    }
    if args.recursive {
        all(&root, &group, wait, done)
    } else {
        remove_one(&root, &group, wait, done)
    }
}

/// Removes a group and the groups below it. If a program runs in any of them, removes none.
fn all(
    root: &Root,
    group: &Group,
    wait: &Cell<Duration>,
    done: &mut Vec<Change>,
) -> Result<(), Failure> {
    // A group's ledger also lists the members of all groups below it, so one ledger is enough.
    let used = match group.past_leases(groups::end_of_leases(), || group.ledger()) {
        Err(error) if error.is_leased() => return Err(error.into()),
        Ok(ledger) => ledger.has_live(),
        Err(_) => Ledger::is_used(&group.ledger_path()),
    };
    if used {
        return Err(GroupError::InUse {
            name: group.name().into(),
        }
        .into());
    }
    root.remove_jobs_within(group);
    let below = root.directories_below(Some(group))?;
    output::notes(&groups::too_many(&below.cut_short));
    for group in below.groups.iter().rev() {
        remove_one(root, group, wait, done)?;
        // The directory of an incomplete group, or one that gpulimit did not make, is still there.
        if let Err(error @ (GroupError::Foreign { .. } | GroupError::Unsafe { .. })) =
            root.remove_leftover(group)
            && group.path().exists()
        {
            return Err(error.into());
        }
    }
    remove_one(root, group, wait, done)
}

/// How long `rm` waits in total for other programs that make or remove the same groups.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Removes a group. Tries again for the time `wait` while another program makes the group. Succeeds
/// if the other program removes it.
fn remove_one(
    root: &Root,
    group: &Group,
    wait: &Cell<Duration>,
    done: &mut Vec<Change>,
) -> Result<(), Failure> {
    loop {
        let start = Instant::now();
        match group.past_leases(groups::end_of_leases(), || root.remove(group.name())) {
            Err(error) if error.is_missing() => return Ok(()),
            // Another program uses the group for a moment, so try again. A running job's group is
            // in use for longer.
            Err(GroupError::InUse { .. })
                if !Ledger::is_used(&group.ledger_path())
                    && (group.kind() == Kind::Named || group.has_ended()) =>
            {
                if wait.get().is_zero() {
                    let path = group.path().to_owned();
                    return Err(GroupError::Held { path }.into());
                }
                thread::sleep(Duration::from_millis(5));
                wait.set(wait.get().saturating_sub(start.elapsed()));
            }
            Err(GroupError::InUse { name }) if !Ledger::is_used(&group.ledger_path()) => {
                // `run` names the group after its process.
                let pid = group.name().rsplit('-').nth(1).unwrap_or_default();
                return Err(Failure::new(format_args!(
                    "group '{name}' was made for process {pid}, which still runs and may use it: \
                     end it first"
                )));
            }
            removed => {
                removed?;
                done.push((group.name().into(), "removed".into()));
                return Ok(());
            }
        }
    }
}

/// Kills the processes of a group again and again, until all are dead or until the time `end`.
fn drain(group: &Group, end: Instant) -> Result<(), Failure> {
    let start = Instant::now();
    let ledger = match groups::to_signal(group) {
        // Every member has a lock on the ledger, even on a damaged one.
        Err(GroupError::Ledger(_)) if !Ledger::is_used(&group.ledger_path()) => return Ok(()),
        ledger => ledger?,
    };
    // The wait for leases on the ledger must not shorten the time that killed programs have to end.
    let end = end + start.elapsed();
    let ledger = ledger.ok_or_else(|| groups::unreadable(group.ledger_path()))?;
    let look = look::members();
    let targets = proven(group, &ledger, &look)?;
    let mut told = BTreeSet::new();
    while ledger.has_live() {
        // Check the time before the kills, not after them: slow kills may take until after `end`,
        // and still end all processes.
        let late = Instant::now() > end;
        let killed = end_all(group, &ledger, &targets, &mut told);
        if late && ledger.has_live() {
            let remaining = remaining(&killed?);
            let name = group.name();
            return Err(match remaining.as_str() {
                "" => GroupError::InUse { name: name.into() }.into(),
                who => Failure::new(format_args!(
                    "processes of group '{name}' were killed, but are not gone yet: {who}"
                )),
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

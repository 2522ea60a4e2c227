//! `gpulimit suspend`: moves the GPU memory of processes to the host.

use crate::machine::{nvml::Driver, obstacles};
use crate::shown::output;
use crate::suspension::report::{check_some_live, report};
use crate::suspension::settle::{end_it, finish_it, freeze, settle_all, stays_suspended};
use crate::suspension::subjects::{Subject, Which, reason, time};
use crate::suspension::world::{Machine, Stop, record, report_lost};
use crate::suspension::{bound::passed, checkpoint::Checkpoints};
use crate::words::failure::Failure;
use gpulimit_ledger::{Errand, EventKind};
use gpulimit_suspend::{State, World};
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `suspend`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    which: Which,

    /// How long to wait for the work that the processes have under way on the GPUs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,

    /// Also stop the processes (SIGSTOP), so that they use no processor time
    #[arg(long)]
    freeze: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
The driver copies the GPU memory of the processes to the host, about 2 GiB a
second, and frees it on the GPUs for other programs. The processes live on: a
call of CUDA that they make waits until `gpulimit resume`. Either all processes
are suspended or none; processes that are suspended already stay so.

A process without memory on a GPU runs on, and nothing holds it back if it
takes some later. If it is known to use CUDA, standard error names it.

If the driver could not bring a process back, nothing is suspended, and the
reasons are printed; `gpulimit doctor --pid PID` shows them at any time. What
you need: driver 570 or newer on x86-64, the right to trace the processes (your
own, or root), and free memory on the host. The key suspended.max of a group
bounds how much may be there.

Ctrl-C brings back what is down already. The exit status is 1 if nothing was
suspended, as when all processes have ended meanwhile, if a process is lost, or
if one runs on because it waits for its first memory on a GPU.

Examples:
  gpulimit suspend lab/notebooks
  gpulimit suspend --pid 4711 --freeze
  gpulimit suspend lab --timeout 5m --json";

/// Suspends the processes, all or none.
pub fn suspend(args: &Args) -> Result<ExitCode, Failure> {
    let checkpoints = Checkpoints::load()?;
    let subjects = args.which.subjects()?;
    let stop = Stop::on_signals();
    let mut machine = Machine::of(&checkpoints, &subjects, Some(args.timeout), stop)?;
    settle_all(&machine, &subjects)?;
    let before: Vec<u64> = subjects.iter().map(Subject::suspended).collect();
    let gpus = &checkpoints.gpus;
    let (mut set, mut starts) = (Vec::new(), false);
    for (at, subject) in subjects.iter().enumerate() {
        if subject.is_suspended() {
            continue;
        }
        let why = match subject.bytes(Some(gpus)) {
            1.. => {
                set.push(at);
                continue;
            }
            0 if subject.waits() => {
                starts = true;
                "it has no memory on a GPU, and waits for some; it starts when there is room"
            }
            0 if subject.counts_contexts() => "it has no memory on a GPU, but may take some later",
            0 => "NVML shows no memory of it, and its group does not count contexts",
        };
        output::note(&format!("{} runs on: {why}", subject.name()));
    }
    check(gpus, &machine, &subjects, &set, !args.which.pids.is_empty())?;
    if let Err(failure) = gpulimit_suspend::suspend(&mut machine, &set) {
        // The driver may have given up a process while its memory was on the GPUs.
        let is_lost = |subject: &&Subject| subject.errand().0 == Errand::Lost;
        let lost = set.iter().map(|at| &subjects[*at]).filter(is_lost);
        lost.filter(|subject| !subject.is_suspended())
            .for_each(|subject| report_lost(subject, &end_it(subject)));
        return Err(undone(&machine, &subjects, &set, failure));
    }
    for subject in set.iter().map(|at| &subjects[*at]) {
        if !subject.is_gone() {
            record(subject, EventKind::Suspend, &subject.moved_by_gpu());
        }
    }
    if args.freeze {
        freeze(subjects.iter())?;
    }
    let group = args.which.group.as_deref();
    let status = report(&subjects, &before, &[], group, args.json)?;
    check_some_live(&subjects).map_err(nothing)?;
    Ok(if starts { ExitCode::FAILURE } else { status })
}

/// Returns the error of a suspension that has failed. Names the processes that stay suspended, as
/// other programs have taken their room meanwhile, and records them. Names those that are left
/// half-done.
fn undone(machine: &Machine<'_>, subjects: &[Subject], set: &[usize], failure: Failure) -> Failure {
    let mut some = false;
    for (at, subject) in set.iter().map(|at| (*at, &subjects[*at])) {
        let has_none = subject.errand().0 == Errand::None;
        if has_none && matches!(machine.state(at), Ok(State::Checkpointed)) {
            record(subject, EventKind::Suspend, &subject.moved_by_gpu());
            output::note(&stays_suspended(subject));
        } else if subject.is_half_done() {
            output::note(&finish_it(subject));
        } else {
            continue;
        }
        some = true;
    }
    let runs = |at: &usize| matches!(machine.state(*at), Ok(State::Running | State::Gone));
    match failure.is_interrupted {
        true if some => Failure::new("interrupted: not all processes are as they were before"),
        false if set.iter().all(runs) => nothing(failure),
        _ => failure,
    }
}

/// Adds to an error that it has kept all processes as they were.
fn nothing(error: impl fmt::Display) -> Failure {
    Failure::new(format_args!("{error}; nothing was suspended"))
}

/// Looks at all processes of a set before anything is touched. Members of a group may end
/// meanwhile, but not processes that the caller has `named`.
///
/// # Errors
/// All reasons why the set must not be suspended.
fn check(
    gpus: &Driver,
    machine: &Machine<'_>,
    subjects: &[Subject],
    set: &[usize],
    named: bool,
) -> Result<(), Failure> {
    let wanted: Vec<&Subject> = set.iter().map(|at| &subjects[*at]).collect();
    let sizes: Vec<(u32, u64)> = (wanted.iter())
        .map(|subject| (subject.target.pid, subject.bytes(Some(gpus))))
        .collect();
    let mut reasons = passed(&wanted)?;
    for (pid, obstacle) in obstacles::all(gpus, &sizes) {
        let mut all = wanted.iter().copied();
        let subject = all.find(|subject| Some(subject.target.pid) == pid);
        if named || !subject.is_some_and(Subject::is_ending) {
            reasons.push(reason(subject, &obstacle));
        }
    }
    for subject in wanted {
        let own = obstacles::of_word(subject.ledger().obstacles_of(subject.identity()));
        // A process that has ended has no obstacles.
        if !subject.is_gone() {
            reasons.extend(own.iter().map(|obstacle| reason(Some(subject), obstacle)));
        }
    }
    // The driver answers no question about a process with some of these obstacles.
    if reasons.is_empty() {
        for at in set {
            let (state, name) = (machine.state(*at).map_err(nothing)?, subjects[*at].name());
            if state == State::Failed {
                let end = end_it(&subjects[*at]);
                reasons.push(format!("the driver has given up {name}: {end}"));
            } else if machine.is_foreign(*at, state) {
                reasons.push(format!("another program has locked or suspended {name}"));
            }
        }
    }
    let Some(last) = reasons.pop() else {
        return Ok(());
    };
    reasons.iter().for_each(|reason| output::note(reason));
    Err(nothing(last))
}

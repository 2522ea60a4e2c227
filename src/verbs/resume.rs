//! `gpulimit resume`: brings the GPU memory of suspended processes back.

use crate::groups::kill;
use crate::shown::output;
use crate::suspension::checkpoint::Checkpoints;
use crate::suspension::report::{check_some_live, report};
use crate::suspension::settle::{finish_it, freeze, settle_all, stays_suspended};
use crate::suspension::subjects::{Subject, Which, time};
use crate::suspension::world::{Machine, Stop, record};
use crate::words::failure::Failure;
use gpulimit_ledger::{Errand, EventKind};
use gpulimit_suspend::{State, World};
use std::process::ExitCode;
use std::time::Duration;

/// Options of `resume`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    which: Which,

    /// How long to wait for room in the groups and on the GPUs [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,

    /// Kill processes that the driver cannot bring back, now or before
    #[arg(long)]
    kill_lost: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Waits until the groups and the GPUs have room for all suspended processes, and
then brings all of them back, about 5 GiB a second. Without room all stay
suspended: resume again later. The same holds after Ctrl-C, until the first
process comes back; then all do. Processes that `suspend --freeze` has stopped
are continued first.

If a process is stopped at that moment, as by a debugger, or the driver does
not answer, the command fails. It prints what state each process is in, and how
to go on with those that are not back. The exit status is 1.

If the driver fails to bring a process back, the process is lost: its calls of
CUDA never return. That can happen if a program outside all groups takes the
room at the last moment. With --kill-lost such a process is killed. Otherwise
end it yourself, as with `kill -9 PID`. The exit status is then 1, as it is when
all processes have ended meanwhile.

Examples:
  gpulimit resume lab/notebooks
  gpulimit resume --pid 4711 --timeout 10m";

/// Resumes the processes, all or none.
pub fn resume(args: &Args) -> Result<ExitCode, Failure> {
    let checkpoints = Checkpoints::load()?;
    let subjects = args.which.subjects()?;
    let stop = Stop::on_signals();
    let mut machine = Machine::of(&checkpoints, &subjects, args.timeout, stop)?;
    for subject in &subjects {
        subject.check_namespace()?;
    }
    let thawed = Thawed::of(&subjects, args.kill_lost)?;
    settle_all(&machine, &subjects)?;
    let before: Vec<u64> = subjects.iter().map(Subject::suspended).collect();
    let down: Vec<bool> = subjects.iter().map(Subject::is_suspended).collect();
    let is_lost = |at: &usize| subjects[*at].errand().0 == Errand::Lost;
    let lost: Vec<usize> = (0..subjects.len()).filter(is_lost).collect();
    // A lost process is tried once more before it is killed: any member can write that it is lost.
    let is_tried = |at: &usize| args.kill_lost || !lost.contains(at);
    let set: Vec<usize> = (0..subjects.len())
        .filter(|at| down[*at] && is_tried(at))
        .collect();
    if set.is_empty() && lost.is_empty() && !subjects.is_empty() && !args.json {
        output::note("no process is suspended");
    }
    for at in &set {
        machine.ready(*at)?;
    }
    let moved: Vec<_> = set.iter().map(|at| subjects[*at].moved_by_gpu()).collect();
    let mut done = gpulimit_suspend::resume(&mut machine, &set);
    drop(thawed);
    let mut killed = Vec::new();
    // Processes that were lost while their memory was on the GPUs. Only the driver is believed.
    for at in lost.into_iter().filter(|at| !down[*at] && args.kill_lost) {
        match machine.state(at) {
            Ok(State::Failed) => killed.extend(end(&subjects[at])),
            state => done = done.and(state.map(drop)),
        }
    }
    let some_are_back = set.iter().any(|at| !subjects[*at].is_suspended());
    for (at, moved) in set.into_iter().zip(moved) {
        let subject = &subjects[at];
        match subject.errand().0 {
            // After a failure it may be one that was lost before, and was not tried.
            Errand::Lost if args.kill_lost && done.is_ok() => killed.extend(end(subject)),
            Errand::Lost => {}
            _ if subject.is_gone() => {}
            _ if subject.is_half_done() => output::note(&finish_it(subject)),
            _ if subject.is_suspended() && some_are_back => {
                output::note(&stays_suspended(subject));
            }
            _ if subject.is_suspended() => {}
            _ => record(subject, EventKind::Resume, &moved),
        }
    }
    let mut known: Vec<_> = killed.into_iter().map(|pid| (pid, "killed")).collect();
    // Another tool has suspended the process, or has brought it back without unlocking it.
    let is_held = |(at, subject): &(usize, &Subject)| {
        let is_back = subject.errand().0 == Errand::None && !subject.is_suspended();
        is_back && (machine.state(*at)).is_ok_and(|state| machine.is_foreign(*at, state))
    };
    for (_, subject) in subjects.iter().enumerate().filter(is_held) {
        let name = subject.name();
        output::note(&format!(
            "another program has locked or suspended {name}, and must let it go on"
        ));
        known.push((subject.target.pid, "locked"));
    }
    let group = args.which.group.as_deref();
    let status = report(&subjects, &before, &known, group, args.json)?;
    done?;
    if known.is_empty() {
        check_some_live(&subjects)?;
    }
    Ok(status)
}

/// Kills a lost process, which is proven to be a member, and records that. Returns its pid, unless
/// it has ended already.
fn end(subject: &Subject) -> Option<u32> {
    let (ledger, target) = (subject.ledger(), &subject.target);
    let sent = kill::send(
        &subject.group,
        ledger,
        &subject.usage,
        target,
        libc::SIGKILL,
    );
    sent.ok().map(|()| target.pid)
}

/// Processes that `suspend --freeze` had stopped, or that are lost and stopped, and that run now:
/// the driver's thread in a process must run. Dropping this stops those again that are still
/// suspended.
struct Thawed<'a>(Vec<&'a Subject>);

impl<'a> Thawed<'a> {
    /// Continues the processes. With `lost`, also those that are lost, whoever has stopped them.
    fn of(subjects: &'a [Subject], lost: bool) -> Result<Self, Failure> {
        let mut thawed = Self(Vec::new());
        for subject in subjects {
            let (errand, frozen) = subject.errand();
            // Somebody else may have continued it.
            let was_stopped = subject.is_stopped();
            let is_stuck = lost && was_stopped && errand == Errand::Lost;
            if !frozen && !is_stuck {
                continue;
            }
            match subject.target.send(libc::SIGCONT) {
                Err(error) if !subject.is_gone() => {
                    return Err(Failure::new(format_args!(
                        "cannot continue {}: {error}",
                        subject.name()
                    )));
                }
                _ => subject.set_errand(errand, false),
            }
            thawed.0.extend(was_stopped.then_some(subject));
        }
        Ok(thawed)
    }
}

impl Drop for Thawed<'_> {
    fn drop(&mut self) {
        let is_lost = |subject: &Subject| subject.errand().0 == Errand::Lost;
        let suspended = self.0.iter().copied().filter(|subject| !is_lost(subject));
        if let Err(failure) = freeze(suspended) {
            output::note(&failure.to_string());
        }
    }
}

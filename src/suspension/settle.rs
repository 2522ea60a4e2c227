//! Ends what dead commands have left half-done, and names what is left.

use super::subjects::Subject;
use super::world::{Machine, record};
use crate::words::failure::Failure;
use gpulimit_ledger::{Errand, EventKind};
use gpulimit_suspend::{State, World, settle};
use std::thread;
use std::time::{Duration, Instant};

/// Ends the work of an actor that has died on a process, and records what has become of it.
pub fn settle_one(machine: &Machine<'_>, at: usize, subject: &Subject) -> Result<State, Failure> {
    let (errand, had) = (subject.errand().0, subject.suspended());
    let state = settle(machine, at)?;
    let kind = match state {
        State::Running if errand == Errand::Resume => EventKind::Resume,
        // A process that was not brought back has an event already.
        State::Checkpointed if errand == Errand::Suspend || had == 0 => EventKind::Suspend,
        State::Failed => EventKind::Lost,
        _ => return Ok(state),
    };
    record(subject, kind, &subject.moved_by_gpu());
    Ok(state)
}

/// Ends the work of actors that have died, on the processes of a set, and charges those that
/// another tool has brought back.
///
/// # Errors
/// A process is stopped, so the driver does not answer.
pub fn settle_all(machine: &Machine<'_>, subjects: &[Subject]) -> Result<(), Failure> {
    for (at, subject) in subjects.iter().enumerate() {
        if matches!(subject.errand().0, Errand::Suspend | Errand::Resume) {
            subject.check_namespace()?;
            settle_one(machine, at, subject)?;
        } else if subject.is_suspended()
            && subject.is_answered_for()
            && matches!(machine.state(at), Ok(State::Running | State::Locked))
        {
            settle_one(machine, at, subject)?;
        }
    }
    Ok(())
}

/// Returns how to bring back a process that the command leaves suspended.
pub fn stays_suspended(subject: &Subject) -> String {
    let (name, pid) = (subject.name(), subject.target.pid);
    format!("{name} stays suspended: `gpulimit resume --pid {pid}` brings it back")
}

/// Returns how to end the work on a process that is left half-done.
pub fn finish_it(subject: &Subject) -> String {
    let (name, pid) = (subject.name(), subject.target.pid);
    let how = match subject.check_runs() {
        Ok(()) => format!(", or `kill -9 {pid}` ends it"),
        Err(_) => " once it runs again".to_owned(),
    };
    format!(
        "{name} is left half-done, its calls of CUDA wait: `gpulimit resume --pid {pid}` lets it \
         go on{how}"
    )
}

/// Returns how to end a lost process.
pub fn end_it(subject: &Subject) -> String {
    let pid = subject.target.pid;
    format!("end it with `kill -9 {pid}` or `gpulimit resume --pid {pid} --kill-lost`")
}

/// Stops suspended processes, and waits until they stand still: the kernel stops a process a moment
/// after the signal is sent.
pub fn freeze<'a>(subjects: impl Iterator<Item = &'a Subject>) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let suspended: Vec<&Subject> = subjects.filter(|one| one.is_suspended()).collect();
    for subject in &suspended {
        // The mark comes first, so that `resume` continues the process in any case.
        subject.set_errand(subject.errand().0, true);
        match subject.target.send(libc::SIGSTOP) {
            Err(error) if !subject.is_gone() => {
                return Err(Failure::new(format_args!(
                    "cannot stop {}, which is suspended: {error}",
                    subject.name()
                )));
            }
            _ => {}
        }
    }
    let until = Instant::now() + PATIENCE;
    let stands = |subject: &&Subject| subject.is_stopped() || subject.is_gone();
    while !suspended.iter().all(stands) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

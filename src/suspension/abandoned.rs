//! Processes on which a command was at work when it died, and suspended ones that another tool has
//! brought back.

use super::checkpoint::Checkpoints;
use super::settle::settle_one;
use super::subjects::{Subject, candidates};
use super::world::{Machine, Stop};
use crate::groups::Selection;
use crate::groups::budget::{Budget, VERB};
use crate::machine::nvml::Driver;
use crate::shown::output;
use gpulimit_base::process::FIRST_PID_NS;
use gpulimit_group::Group;
use gpulimit_ledger::{Category, Ledger, NoWitness};
use gpulimit_suspend::State;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long another verb waits for this. The driver answers late while it moves memory, and not at
/// all if it hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ends what dead commands have left half-done with processes of these groups: unlocks locked
/// processes, and corrects the figures of suspended ones. Charges suspended processes again that
/// another tool has brought back. Looks only at processes that the caller may suspend. Prints what
/// was done on standard error. Call before this process starts threads.
pub fn settle_abandoned(selection: &Selection) {
    let has_abandoned = |ledger: &Ledger| !ledger.abandoned().is_empty();
    let groups = groups_with(selection, |ledger| {
        has_abandoned(ledger) || ledger.has_suspended()
    });
    if groups.is_empty() {
        return;
    }
    match Checkpoints::load() {
        Ok(checkpoints) => {
            if !ask(groups, checkpoints, settle_in, |note: String| {
                output::note(&note)
            }) {
                output::note(
                    "the driver is still at work for a command that was killed: try again later",
                );
            }
        }
        Err(missing) => {
            let mut ledgers = groups.iter().filter_map(|group| group.ledger().ok());
            if ledgers.any(|ledger| has_abandoned(&ledger)) {
                output::note(&format!(
                    "cannot end what a killed `suspend` or `resume` has left half-done: {missing}"
                ));
            }
        }
    }
}

/// Returns the pids of the processes of these groups that are suspended, as the driver says. It may
/// take seconds to load the driver, which is asked only about groups with processes that are
/// suspended or that NVML does not list. Changes nothing. Call before this process starts threads.
pub fn confirmed(selection: &Selection, gpus: Option<&Driver>) -> Vec<u32> {
    let mut away = Vec::new();
    let groups = groups_with(selection, |ledger| {
        ledger.has_suspended() || gpus.is_some_and(|gpus| has_hidden(ledger, gpus))
    });
    if !groups.is_empty()
        && let Ok(checkpoints) = Checkpoints::load()
    {
        let of = |group: &Group, checkpoints: &Checkpoints| {
            let state = |one: &Subject| driver_state(one, checkpoints);
            let away = subjects(group).filter(|one| state(one) == Some(State::Checkpointed));
            away.map(|one| one.target.pid).collect()
        };
        ask(groups, checkpoints, of, |pid| away.push(pid));
    }
    away
}

/// Returns whether a process is charged for memory which NVML does not show: another tool may have
/// suspended it. Only in the first pid namespace does NVML show all processes.
fn has_hidden(ledger: &Ledger, gpus: &Driver) -> bool {
    let processes = ledger.processes(&NoWitness);
    ledger.devices().iter().any(|device| {
        let listed = gpus.processes(&device.id);
        let is_hidden = |pid| listed.as_ref().is_some_and(|them| !them.contains_key(pid));
        processes.iter().any(|process| {
            let (usage, identity) = (process.on(device.index), &process.identity);
            let is_seen = process.alive && identity.pid_ns == FIRST_PID_NS;
            let managed = usage.by[Category::Managed as usize];
            is_seen && usage.in_use() > managed && is_hidden(&identity.pid)
        })
    })
}

/// Asks the driver in a thread about the processes of each group, and tells what it finds. Returns
/// false if the driver has not answered in time.
fn ask<T: Send + 'static>(
    groups: Vec<Group>,
    checkpoints: Checkpoints,
    of: impl Fn(&Group, &Checkpoints) -> Vec<T> + Send + 'static,
    mut tell: impl FnMut(T),
) -> bool {
    let (done, waits) = mpsc::channel();
    thread::spawn(move || {
        for found in groups.iter().flat_map(|group| of(group, &checkpoints)) {
            // The verb may have ended its wait.
            let _ = done.send(found);
        }
    });
    loop {
        match waits.recv_timeout(PATIENCE) {
            Ok(found) => tell(found),
            Err(end) => return end == mpsc::RecvTimeoutError::Disconnected,
        }
    }
}

/// Returns the processes of a group that are proven to be members. One that cannot be proven, as of
/// another user, does not keep the others.
fn subjects(group: &Group) -> impl Iterator<Item = Subject> {
    candidates(group, None).into_iter().flatten().flatten()
}

/// Returns the selected groups whose ledger is so, within the budgets of their owners.
pub fn groups_with(selection: &Selection, is_so: impl Fn(&Ledger) -> bool) -> Vec<Group> {
    let mut budget = Budget::new(VERB);
    let is_so = |group: &&Group| {
        let look = || group.ledger().is_ok_and(|ledger| is_so(&ledger));
        budget.of(group).within(group, look) == Some(true)
    };
    selection.groups.iter().filter(is_so).cloned().collect()
}

/// Returns the driver's state of a process on which no command is at work. Takes no lock: a command
/// that resumes the process does not notice the look.
fn driver_state(subject: &Subject, checkpoints: &Checkpoints) -> Option<State> {
    let may_ask = !subject.ledger().has_actor(subject.identity()) && subject.is_answered_for();
    may_ask.then(|| checkpoints.state(subject.target.pid).ok())?
}

/// Ends the work of dead commands on the processes of a group. Returns a line for each process.
fn settle_in(group: &Group, checkpoints: &Checkpoints) -> Vec<String> {
    let left = subjects(group).filter(|one| one.is_suspended() || one.is_abandoned());
    let found = left.filter_map(|subject| {
        let is_abandoned = subject.is_abandoned() && subject.is_answered_for();
        match driver_state(&subject, checkpoints) {
            _ if is_abandoned => {}
            Some(State::Running | State::Locked) => {}
            _ => return None,
        }
        let only = std::slice::from_ref(&subject);
        let machine = Machine::of(checkpoints, only, Some(PATIENCE), Stop::never());
        let now = match machine.and_then(|machine| settle_one(&machine, 0, &subject)) {
            Ok(State::Running) => "runs",
            Ok(State::Checkpointed) => "is suspended",
            Ok(State::Failed) => "is lost",
            Ok(State::Locked) if !is_abandoned => "is locked",
            Ok(State::Locked | State::Moving) => "is not settled yet",
            Ok(State::Gone) => return None,
            Err(failure) => return Some(failure.to_string()),
        };
        let why = match is_abandoned {
            true => "the command that suspended or resumed it was killed",
            false => "another program has resumed it, and its memory is charged again",
        };
        Some(format!("{name} {now}: {why}", name = subject.name()))
    });
    found.collect()
}

//! Processes on which a command was at work when it died, and suspended ones that another tool has
//! brought back.

use super::checkpoint::{self, Checkpoints};
use super::settle::settle_one;
use super::subjects::{Subject, candidates};
use super::world::{Machine, Stop};
use crate::groups::Selection;
use crate::groups::budget::{Budget, VERB};
use crate::shown::output;
use gpulimit_group::Group;
use gpulimit_ledger::Ledger;
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
/// was done on standard error. Returns the pids of the processes that are suspended, as the driver
/// says. Call before this process starts threads.
pub fn settle_abandoned(selection: &Selection) -> Vec<u32> {
    let mut away = Vec::new();
    let groups = groups_with(selection, |ledger| {
        ledger.has_abandoned() || ledger.has_suspended()
    });
    if groups.is_empty() {
        return away;
    }
    let checkpoints = match Checkpoints::load() {
        Ok(checkpoints) => checkpoints,
        Err(_)
            if !(groups.iter()).any(|group| group.ledger().is_ok_and(|it| it.has_abandoned())) =>
        {
            return away;
        }
        Err(missing) => {
            output::note(&format!(
                "cannot end what a killed `suspend` or `resume` has left half-done: {missing}"
            ));
            return away;
        }
    };
    let (done, waits) = mpsc::channel();
    thread::spawn(move || {
        groups.iter().for_each(|group| {
            for found in settle_in(group, &checkpoints) {
                // The verb may have ended its wait.
                let _ = done.send(found);
            }
        });
    });
    loop {
        match waits.recv_timeout(PATIENCE) {
            Ok(Found::Note(note)) => output::note(&note),
            Ok(Found::Away(pid)) => away.push(pid),
            Err(mpsc::RecvTimeoutError::Disconnected) => return away,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                output::note(
                    "the driver is still at work for a command that was killed: try again later",
                );
                return away;
            }
        }
    }
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

/// A result of the look at one process.
enum Found {
    /// A line about what was done.
    Note(String),
    /// The pid of a process whose memory is on the host.
    Away(u32),
}

/// Returns the driver's state of a suspended process. Takes no lock: a command that resumes the
/// process does not notice the look.
fn driver_state(subject: &Subject, checkpoints: &Checkpoints) -> Option<checkpoint::State> {
    let is_left = subject.is_suspended() && !subject.ledger().has_actor(subject.identity());
    let may_ask = is_left && subject.is_answered_for();
    may_ask.then(|| checkpoints.state(subject.target.pid).ok())?
}

fn settle_in(group: &Group, checkpoints: &Checkpoints) -> Vec<Found> {
    // One that cannot be proven to be a member, as of another user, does not keep the others.
    let subjects = candidates(group, None).into_iter().flatten().flatten();
    let found = subjects.filter_map(|subject| {
        let is_abandoned = subject.is_abandoned() && subject.is_answered_for();
        let state = driver_state(&subject, checkpoints);
        match state {
            _ if is_abandoned => {}
            Some(checkpoint::State::Running | checkpoint::State::Locked) => {}
            Some(checkpoint::State::Checkpointed) => return Some(Found::Away(subject.target.pid)),
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
            Err(failure) => return Some(Found::Note(failure.to_string())),
        };
        let why = match is_abandoned {
            true => "the command that suspended or resumed it was killed",
            false => "another program has resumed it, and its memory is charged again",
        };
        let note = format!("{name} {now}: {why}", name = subject.name());
        Some(Found::Note(note))
    });
    found.collect()
}

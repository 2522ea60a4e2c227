//! Processes on which a command was at work when it died, and suspended ones that another tool has
//! brought back.

use super::subjects::candidates;
use super::{Machine, Stop, Subject, settle_one};
use crate::checkpoint::{self, Checkpoints};
use crate::groups::Selection;
use crate::output;
use gpulimit_group::Group;
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
    let mut groups: Vec<Group> = selection.groups.clone();
    groups.retain(|group| has_abandoned(group) || has_suspended(group));
    if groups.is_empty() {
        return;
    }
    let checkpoints = match Checkpoints::load() {
        Ok(checkpoints) => checkpoints,
        Err(_) if !groups.iter().any(has_abandoned) => return,
        Err(missing) => {
            output::note(&format!(
                "cannot end what a killed `suspend` or `resume` has left half-done: {missing}"
            ));
            return;
        }
    };
    let (done, waits) = mpsc::channel();
    thread::spawn(move || {
        groups.iter().for_each(|group| {
            for note in settle_in(group, &checkpoints) {
                // The verb may have ended its wait.
                let _ = done.send(note);
            }
        });
    });
    loop {
        match waits.recv_timeout(PATIENCE) {
            Ok(note) => output::note(&note),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                output::note(
                    "the driver is still at work for a command that was killed: try again later",
                );
                return;
            }
        }
    }
}

// Cheap for groups without such processes: nothing is proven or opened again.
fn has_abandoned(group: &Group) -> bool {
    group.ledger().is_ok_and(|ledger| ledger.has_abandoned())
}

fn has_suspended(group: &Group) -> bool {
    group.ledger().is_ok_and(|ledger| ledger.has_suspended())
}

/// Returns whether the driver has the memory of a suspended process on the GPUs. Takes no lock: a
/// command that resumes the process does not notice the look.
fn is_back(subject: &Subject, checkpoints: &Checkpoints) -> bool {
    let is_left = subject.is_suspended() && !subject.ledger().has_actor(subject.identity());
    is_left
        && subject.is_answered_for()
        && matches!(
            checkpoints.state(subject.target.pid),
            Ok(checkpoint::State::Running | checkpoint::State::Locked)
        )
}

fn settle_in(group: &Group, checkpoints: &Checkpoints) -> Vec<String> {
    // One that cannot be proven to be a member, as of another user, does not keep the others.
    let subjects = candidates(group, None).into_iter().flatten().flatten();
    let notes = subjects.filter_map(|subject| {
        let is_abandoned = subject.is_abandoned() && subject.is_answered_for();
        if !is_abandoned && !is_back(&subject, checkpoints) {
            return None;
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
    notes.collect()
}

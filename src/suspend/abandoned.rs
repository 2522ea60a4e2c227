//! Processes on which a command was at work when it died.

use super::subjects::candidates;
use super::{Machine, Stop, settle_one};
use crate::checkpoint::Checkpoints;
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
/// processes, and corrects the figures of suspended ones. Looks only at processes that the caller
/// may suspend. Prints what was done on standard error. Call before this process starts threads.
pub fn settle_abandoned(selection: &Selection) {
    let mut groups: Vec<Group> = selection.groups.clone();
    groups.retain(has_abandoned);
    if groups.is_empty() {
        return;
    }
    let checkpoints = match Checkpoints::load() {
        Ok(checkpoints) => checkpoints,
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

fn has_abandoned(group: &Group) -> bool {
    // Cheap for groups without such processes: nothing is proven or opened again.
    group.ledger().is_ok_and(|ledger| ledger.has_abandoned())
}

fn settle_in(group: &Group, checkpoints: &Checkpoints) -> Vec<String> {
    // One that cannot be proven to be a member, as of another user, does not keep the others.
    let subjects = candidates(group, None).into_iter().flatten().flatten();
    // The driver answers no question about a stopped process.
    let subjects = subjects.filter(|subject| {
        subject.is_abandoned() && subject.check_runs().is_ok() && subject.check_namespace().is_ok()
    });
    let notes = subjects.filter_map(|subject| {
        let only = std::slice::from_ref(&subject);
        let machine = Machine::of(checkpoints, only, Some(PATIENCE), Stop::never());
        let now = match machine.and_then(|machine| settle_one(&machine, 0, &subject)) {
            Ok(State::Running) => "runs",
            Ok(State::Checkpointed) => "is suspended",
            Ok(State::Failed) => "is lost",
            Ok(State::Locked | State::Moving) => "is not settled yet",
            Ok(State::Gone) => return None,
            Err(failure) => return Some(failure.to_string()),
        };
        let name = subject.name();
        Some(format!(
            "{name} {now}: the command that suspended or resumed it was killed"
        ))
    });
    notes.collect()
}

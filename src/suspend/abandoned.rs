//! Processes on which a command was at work when it died.

use super::subjects::members;
use super::{Machine, Stop};
use crate::checkpoint::Checkpoints;
use crate::groups::Selection;
use crate::output;
use gpulimit_group::Group;
use gpulimit_suspend::{State, settle};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long another verb waits for this. The driver answers late while it moves memory, and not at
/// all if it hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ends what dead commands have left half-done with processes of these groups: unlocks locked
/// processes, and corrects the figures of suspended ones. Only processes that the caller may suspend
/// are looked at. Prints what was done on standard error.
pub fn settle_abandoned(selection: &Selection) {
    let groups: Vec<Group> = selection.groups.clone();
    if !groups.iter().any(has_abandoned) {
        return;
    }
    let (done, waits) = mpsc::channel();
    thread::spawn(move || {
        groups.iter().for_each(|group| {
            for note in settle_in(group) {
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
                    "the driver is still at work for a command that has died: try again later",
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

fn settle_in(group: &Group) -> Vec<String> {
    let Ok(mut subjects) = members(group, None) else {
        return Vec::new();
    };
    // The driver answers no question about a stopped process.
    subjects.retain(|subject| subject.is_abandoned() && !subject.is_stopped());
    if subjects.is_empty() {
        return Vec::new();
    }
    let checkpoints = match Checkpoints::load() {
        Ok(checkpoints) => checkpoints,
        Err(missing) => return vec![missing.to_string()],
    };
    let mut notes = Vec::new();
    for subject in &subjects {
        let only = std::slice::from_ref(subject);
        let machine = Machine::of(&checkpoints, only, Some(PATIENCE), Stop::never());
        let settled = machine.and_then(|machine| settle(&machine, 0));
        let name = subject.name();
        notes.push(match settled {
            Ok(State::Running) => format!("{name} runs on: a command died while it suspended it"),
            Ok(State::Checkpointed) => {
                format!("{name} is suspended: a command died while it was at work on it")
            }
            Ok(State::Gone) => continue,
            Ok(state) => format!("{name} is left as it is by a command that died ({state:?})"),
            Err(failure) => failure.to_string(),
        });
    }
    notes
}

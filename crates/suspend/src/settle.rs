//! The end of the work on one process, whoever began it.

use crate::{State, World};
use gpulimit_ledger::Errand;

/// Ends the work of an actor that has died, or that gives up, on one process: unlocks a locked
/// process, and moves the charges of a checkpointed one out. Returns the state in which the process
/// is then; [`State::Moving`] if the driver moves its memory, and the work cannot be ended yet.
///
/// Charges a process that another tool has brought back. The lock of another tool stays: then the
/// errand is [`Errand::None`].
///
/// The caller is the only actor on the process.
pub fn settle<W: World>(world: &W, process: W::Process) -> Result<State, W::Error> {
    let mut state = world.state(process)?;
    if state == State::Checkpointed {
        // The memory is on the host, so its charges do not belong to the usage, even if they were
        // handed over for a restore already.
        world.move_out(process)?;
        // Another tool may have resumed the process since the look.
        state = world.state(process).unwrap_or(state);
    }
    match state {
        State::Moving => return Ok(state),
        State::Locked | State::Running | State::Failed => world.take_back(process)?,
        State::Checkpointed | State::Gone => {}
    }
    if state == State::Locked && world.errand(process) != Errand::None {
        world.unlock(process)?;
        state = State::Running;
    }
    // The actor may have taken the next program of a process that has called exec for this one.
    if matches!(state, State::Running | State::Gone) {
        world.admit(process);
    }
    if state != State::Checkpointed {
        world.forget(process);
    }
    // A lost process stays lost.
    match (state, world.errand(process)) {
        (State::Failed, _) => world.set_errand(process, Errand::Lost),
        (State::Checkpointed, Errand::Lost) => {}
        _ => world.set_errand(process, Errand::None),
    }
    Ok(state)
}

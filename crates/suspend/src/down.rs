//! The way to the host.

use crate::{State, World, resume, settle};
use gpulimit_ledger::Errand;

/// Suspends all processes of a set, or none. The caller is the only actor on each of them.
///
/// # Errors
/// The reason why the set was not suspended. Processes that were checkpointed already have been
/// brought back, unless other programs have taken the room on a GPU meanwhile: these processes stay
/// suspended.
pub fn suspend<W: World>(world: &mut W, set: &[W::Process]) -> Result<(), W::Error> {
    if let Err(error) = take_down(world, set) {
        undo(world, set);
        return Err(error);
    }
    // Charges are lowered after the last process is down. Before that, all might have to come back.
    let mut result = Ok(());
    for process in set {
        result = result.and(settle(world, *process).map(drop));
    }
    result
}

fn take_down<W: World>(world: &W, set: &[W::Process]) -> Result<(), W::Error> {
    for process in set {
        world.go_on()?;
        world.set_errand(*process, Errand::Suspend);
        lock(world, *process)?;
    }
    for process in set {
        world.check(*process)?;
    }
    for process in set {
        world.go_on()?;
        world.checkpoint(*process)?;
    }
    for process in set {
        world.await_absence(*process)?;
    }
    Ok(())
}

/// Lets all calls of a process wait.
fn lock<W: World>(world: &W, process: W::Process) -> Result<(), W::Error> {
    loop {
        let mark = world.hold_back(process)?;
        world.lock(process)?;
        if world.is_held_back(process, mark)? {
            return Ok(());
        }
        // A call may have begun that the driver does not make wait.
        world.unlock(process)?;
    }
}

/// Brings back what is down, and unlocks what is locked.
fn undo<W: World>(world: &mut W, set: &[W::Process]) {
    world.turn_back();
    let is_down = |process: &W::Process| matches!(world.state(*process), Ok(State::Checkpointed));
    let (down, others): (Vec<_>, Vec<_>) = set.iter().copied().partition(is_down);
    for process in others {
        // If this fails, the next actor settles the process.
        let _ = settle(world, process);
    }
    // The charges of the processes that are down have not been moved: they are the room.
    let _ = resume(world, &down);
}

//! The way back to the GPUs.

use crate::{State, World, settle};
use gpulimit_ledger::Errand;

/// Resumes all processes of a set, which are checkpointed. The caller is the only actor on each of
/// them. A process that the driver cannot bring back is reported as lost, and the others are
/// resumed all the same.
///
/// # Errors
/// The reason why not all processes were resumed. Without room for all, none is. Only if the ledger
/// does not take the charge of a process over, or the driver cannot be asked about a process, the
/// processes before it are resumed.
pub fn resume<W: World>(world: &mut W, set: &[W::Process]) -> Result<(), W::Error> {
    for process in set {
        world.set_errand(*process, Errand::Resume);
    }
    let result = make_room(world, set).and_then(|()| bring_back(world, set));
    for process in set {
        // If this fails, the next actor settles the process.
        let _ = settle(world, *process);
    }
    world.give_back();
    result
}

/// Charges the room for all processes, and holds it on the GPUs.
fn make_room<W: World>(world: &mut W, set: &[W::Process]) -> Result<(), W::Error> {
    for process in set {
        world.charge(*process)?;
    }
    world.hold(set)?;
    world.go_on()
}

/// Brings back one process after the other. The room of the others is held meanwhile.
fn bring_back<W: World>(world: &mut W, set: &[W::Process]) -> Result<(), W::Error> {
    for process in set {
        // The actor is charged for what it holds, so it lets go first: if the process ends after it
        // has got the charge, the charge is gone.
        world.release(*process);
        world.hand_over(*process)?;
        restore(world, *process)?;
    }
    Ok(())
}

/// Asks the driver, once, to bring back the memory of a process that has its charges again.
///
/// # Errors
/// The driver was not asked, or does not answer: the next actor settles the process.
fn restore<W: World>(world: &W, process: W::Process) -> Result<(), W::Error> {
    let Err(why) = world.restore(process) else {
        return Ok(());
    };
    match world.state(process) {
        Ok(State::Checkpointed | State::Failed) => {
            world.set_errand(process, Errand::Lost);
            world.report_lost(process, why);
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(_) => Err(why),
    }
}

//! The way back to the GPUs.

use crate::{State, World, settle};
use gpulimit_ledger::Errand;

/// Resumes all processes of a set, which are checkpointed. The caller is the only actor on each of
/// them. A process that the driver cannot bring back is reported as lost, and the others are
/// resumed all the same.
///
/// # Errors
/// The reason why not all processes were resumed. Without room for all, none is. Only if a process
/// is stopped meanwhile, the ledger does not take its charge over, or the driver does not answer,
/// the processes before it are resumed. A process whose errand is [`Errand::Resume`] afterwards is
/// left half-done: the driver was not asked, or did not answer. The next actor settles it.
pub fn resume<W: World>(world: &mut W, set: &[W::Process]) -> Result<(), W::Error> {
    let before: Vec<Errand> = (set.iter()).map(|process| world.errand(*process)).collect();
    for process in set {
        world.set_errand(*process, Errand::Resume);
    }
    let mut begun = 0;
    let mut result = make_room(world, set).and_then(|()| bring_back(world, set, &mut begun));
    for (process, errand) in set.iter().zip(before).skip(begun) {
        world.set_errand(*process, errand);
    }
    for process in set {
        result = result.and(settle(world, *process).map(drop));
    }
    world.give_back();
    result
}

/// Charges the room for all processes, and holds it on the GPUs.
fn make_room<W: World>(world: &mut W, set: &[W::Process]) -> Result<(), W::Error> {
    world.charge(set)?;
    world.hold(set)?;
    for process in set {
        world.ready(*process)?;
    }
    world.go_on()
}

/// Brings back one process after the other, and counts them. The room of the others is held
/// meanwhile.
fn bring_back<W: World>(
    world: &mut W,
    set: &[W::Process],
    begun: &mut usize,
) -> Result<(), W::Error> {
    for process in set {
        world.ready(*process)?;
        *begun += 1;
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
    let Err(why) = world.restore(process)? else {
        // The memory is back, also if the process stays locked.
        world.forget(process);
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

//! Checkpoints (`cuCheckpointProcess…`): one process moves the GPU memory of another process away
//! and back.
//!
//! Locking a process does not wait for its driver calls under way. The caller must rule out such
//! calls.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use crate::machine::{MAX_DEVICES, Machine, Slot};
use crate::process::Process;
use crate::{Outcome, Status, grant};

/// The process states, with the numbers of `CUprocessState`.
const RUNNING: u64 = 0;
const LOCKED: u64 = 1;
const CHECKPOINTED: u64 = 2;

/// Returns the slot of a living process by its pid.
fn find(machine: &'static Machine, pid: i32) -> Outcome<(usize, &'static Slot)> {
    let slots = machine.slots.iter().enumerate();
    slots
        .take(machine.high_water.load(SeqCst) as usize)
        .find(|(_, line)| {
            let owner = line.owner.load(SeqCst);
            owner != 0 && (owner >> 32) as i32 == pid && line.died.load(SeqCst) == 0
        })
        .ok_or(Status::INVALID_VALUE)
}

fn step(line: &Slot, from: u64, to: u64) -> Outcome<()> {
    let stepped = line.state.compare_exchange(from, to, SeqCst, SeqCst);
    stepped.map(drop).map_err(|_| Status::ILLEGAL_STATE)
}

/// Returns the `CUprocessState` of a process.
///
/// # Errors
/// `INVALID_VALUE` for a pid without a slot, as in all functions here.
pub fn state(machine: &'static Machine, pid: i32) -> Outcome<i32> {
    Ok(find(machine, pid)?.1.state.load(SeqCst) as i32)
}

/// Makes the driver calls of a process wait until the process is unlocked.
///
/// # Errors
/// `ILLEGAL_STATE` unless the process is running.
pub fn lock(machine: &'static Machine, pid: i32) -> Outcome<()> {
    let (_, line) = find(machine, pid)?;
    step(line, RUNNING, LOCKED)?;
    machine.knobs.note_locked();
    Ok(())
}

/// Moves all GPU memory of a locked process away from the GPUs.
///
/// # Errors
/// `ILLEGAL_STATE` unless the process is locked.
pub fn checkpoint(machine: &'static Machine, pid: i32) -> Outcome<()> {
    let (slot, line) = find(machine, pid)?;
    step(line, LOCKED, CHECKPOINTED)?;
    for device in 0..MAX_DEVICES {
        let blocks = grant::held(machine, slot, device);
        line.away[device].store(blocks, SeqCst);
        grant::change(machine, slot, device, -(blocks as i64));
    }
    Ok(())
}

/// Brings the memory of a checkpointed process back to the GPUs.
///
/// # Errors
/// `ILLEGAL_STATE` for other processes, `OUT_OF_MEMORY`.
pub fn restore(machine: &'static Machine, pid: i32) -> Outcome<()> {
    let (slot, line) = find(machine, pid)?;
    if line.state.load(SeqCst) != CHECKPOINTED {
        return Err(Status::ILLEGAL_STATE);
    }
    for device in 0..MAX_DEVICES {
        let blocks = line.away[device].load(SeqCst) as i64;
        if blocks > 0 && !grant::change(machine, slot, device, blocks) {
            return Err(Status::OUT_OF_MEMORY);
        }
        line.away[device].store(0, SeqCst);
    }
    step(line, CHECKPOINTED, LOCKED)
}

/// Unlocks a process. Its waiting driver calls go on.
///
/// # Errors
/// `ILLEGAL_STATE` unless the process is locked.
pub fn unlock(machine: &'static Machine, pid: i32) -> Outcome<()> {
    step(find(machine, pid)?.1, LOCKED, RUNNING)
}

/// Waits while the calling process is locked.
pub(crate) fn wait_if_locked() {
    let Some(line) = Process::line() else { return };
    while line.state.load(Acquire) != RUNNING {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Resets the checkpoint state of a slot for its new owner, a running process.
pub(crate) fn begin(line: &Slot) {
    line.state.store(RUNNING, Relaxed);
    line.away.iter().for_each(|away| away.store(0, Relaxed));
}

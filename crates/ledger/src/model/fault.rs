//! Deliberate errors in the modelled system. A model checker must detect each of them.

use std::cell::Cell;

/// A deliberate error in the modelled system.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// The claim lock of a slot does not exclude other processes.
    ClaimLockMissing,
    /// All owner locks appear free, as if all owners were dead.
    OwnerLockUnseen,
    /// Owner locks appear free to a process with a claim lock, as if it did not check the owner
    /// lock again.
    SecondLookMissing,
    /// A cleaned slot keeps its charges.
    NotZeroed,
    /// `high_water` is not raised for a newly claimed slot.
    HighWaterMissing,
    /// Memory fences have no effect.
    FenceMissing,
    /// An actor lowers the charge of a process before the driver has moved the memory away.
    LoweredEarly,
    /// An actor has the driver bring the memory back before the process is charged for it.
    RestoredEarly,
    /// Actors do not exclude each other.
    ActorLockMissing,
    /// An actor does not look at a line of a gate.
    LineForgotten,
    /// The simulated driver reports too early that it has freed a dead process's memory.
    DrainMissing,
}

thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

/// Sets the deliberate error for the rest of this thread.
pub(crate) fn set(fault: Fault) {
    FAULT.set(fault);
}

pub(crate) fn is(fault: Fault) -> bool {
    FAULT.get() == fault
}

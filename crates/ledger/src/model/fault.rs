//! Deliberate errors in the modelled system. The checkers must detect each of them.

use std::cell::Cell;

/// An error in the modelled system.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Claim locks do not exclude other processes.
    ClaimLockMissing,
    /// Owner locks always appear free.
    OwnerLockUnseen,
    /// Owner locks appear free to a process that holds a claim lock, as if it did not check them
    /// again.
    SecondLookMissing,
    /// Words of charges are not zeroed.
    NotZeroed,
    /// `high_water` is not raised for a newly claimed slot.
    HighWaterMissing,
    /// Memory fences have no effect.
    FenceMissing,
    /// The driver claims at once to have freed a dead process's memory.
    DrainMissing,
}

thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

/// Sets the error for the rest of this thread.
pub(crate) fn set(fault: Fault) {
    FAULT.set(fault);
}

pub(crate) fn is(fault: Fault) -> bool {
    FAULT.get() == fault
}

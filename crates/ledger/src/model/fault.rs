//! Deliberate errors in the modelled system. The model checkers must detect each of them.

use std::cell::Cell;

/// A deliberate error in the modelled system.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// A claim lock does not exclude other processes from the slot.
    ClaimLockMissing,
    /// The owner lock of every slot appears free, as if every owner were dead.
    OwnerLockUnseen,
    /// Owner locks appear free to a process that holds a claim lock. The effect is that of a
    /// process that does not check the owner lock again after taking the claim lock.
    SecondLookMissing,
    /// The words that count charges are not zeroed when a slot is cleaned.
    NotZeroed,
    /// `high_water` is not raised for a newly claimed slot.
    HighWaterMissing,
    /// Memory fences have no effect.
    FenceMissing,
    /// The simulated driver claims at once to have freed a dead process's memory.
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

//! Worlds that are wrong in one way. The checker has to find each.

use std::cell::Cell;

/// What is wrong.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Claim locks exclude nobody.
    ClaimLockMissing,
    /// Who asks after owner locks finds them free.
    OwnerLockUnseen,
    /// Who has a claim lock does not look at the owner lock again.
    SecondLookMissing,
    /// Slots are not zeroed.
    NotZeroed,
    /// A claimer does not say that its slot is to be looked at.
    HighWaterMissing,
    /// Fences do nothing.
    FenceMissing,
    /// The driver is said to have freed what the dead had.
    DrainMissing,
}

thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

/// In this thread, from here on.
pub(crate) fn set(fault: Fault) {
    FAULT.set(fault);
}

pub(crate) fn is(fault: Fault) -> bool {
    FAULT.get() == fault
}

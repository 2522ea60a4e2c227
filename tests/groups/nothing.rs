//! What the members of tests do about a full group.

use gpulimit_ledger::{DeviceIndex, NoWitness, Pressure, Witness};

/// Does nothing about it.
pub struct Nothing;

impl Pressure for Nothing {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

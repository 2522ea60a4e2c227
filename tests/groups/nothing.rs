//! Members of tests do not react to a full group.

use gpulimit_ledger::{DeviceIndex, NoWitness, Pressure, Witness};

/// Reclaims no memory, and knows nothing about dead processes.
pub struct Nothing;

impl Pressure for Nothing {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

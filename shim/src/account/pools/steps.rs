//! The steps of address space in which a pool's memory lies. They often show that the pool has not
//! grown, so that its reserved bytes need not be read.
//!
//! A pool's memory comes in aligned steps of 32 MiB. A step is *known* if an allocation of the pool
//! has lain in it. An allocation that makes the pool grow lies at least in part in the new steps
//! (measured, H100, 580.159.04). So the pool has not grown since the last reading if two conditions
//! hold:
//! - At that reading, the known steps were all of the pool's memory.
//! - All later allocations lie in known steps.
//!
//! One new step may stay unknown: if GPU work ends while the pool grows, the request may get memory
//! that this work freed. The new step is then unused and has room for any request of up to a step.
//! The pool therefore does not grow by a second unknown step. The headroom pays for the one step.
//!
//! The reserved bytes are read after a call that got an unknown step or asked for more than a step.
//! A whole step is charged for each call under way.
//!
//! The driver may move a pool's memory to new addresses. Then more steps are known than the pool
//! has. The reserved bytes are read after every allocation, until they equal the bytes of the known
//! steps. At 0 reserved bytes, the pool is empty and the known steps are forgotten.

use std::ops::Range;

use super::STEP;
use crate::abi::DevicePtr;
use crate::account::maps::Set;

/// The most steps that are recorded for a pool. They cover 256 GiB of address space and take 72
/// KiB.
const MOST: usize = 8192;

/// The steps in which allocations of a pool have lain since the pool was last empty.
#[derive(Default)]
pub struct Steps {
    known: Set<u64>,
    /// Whether the pool may have memory in steps that are not in `known`.
    incomplete: bool,
}

impl Steps {
    /// Returns the record for a pool that may have memory at unknown addresses.
    pub fn incomplete() -> Self {
        Steps {
            incomplete: true,
            ..Steps::default()
        }
    }

    /// Returns whether `range` lies in known steps and the known steps were all of the pool's
    /// `reserved` bytes.
    #[inline]
    pub fn cover(&self, range: &Range<DevicePtr>, reserved: u64) -> bool {
        self.bytes() == reserved
            && !self.incomplete
            && within(range).all(|step| self.known.contains(&step))
    }

    /// Returns the total bytes of the known steps.
    pub fn bytes(&self) -> u64 {
        self.known.len() as u64 * STEP
    }

    /// Records the steps of an allocation in `range`.
    pub fn learn(&mut self, range: &Range<DevicePtr>) {
        for step in within(range) {
            if self.known.len() == MOST {
                self.incomplete = true;
                return;
            }
            self.known.insert(step);
        }
    }
}

/// Returns the steps in which `range` lies.
#[inline]
pub(super) fn within(range: &Range<DevicePtr>) -> Range<u64> {
    range.start / STEP..range.end.div_ceil(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: DevicePtr = 0x7f00_0000_0000;
    const MIB: u64 = 1 << 20;

    fn at(start: u64, bytes: u64) -> Range<DevicePtr> {
        BASE + start * MIB..BASE + start * MIB + bytes
    }

    #[test]
    fn an_allocation_in_known_steps_needs_no_look() {
        let mut steps = Steps::default();
        assert!(!steps.cover(&at(0, 1), STEP));
        steps.learn(&at(0, 1));
        assert!(steps.cover(&at(0, 1), STEP));
        assert!(steps.cover(&at(31, MIB), STEP), "the range fits the step");
        assert!(
            !steps.cover(&at(31, MIB + 1), STEP),
            "the range goes beyond the step"
        );
        steps.learn(&at(31, MIB + 1));
        assert!(steps.cover(&at(31, MIB + 1), 2 * STEP));
        assert!(!steps.cover(&at(64, 1), 2 * STEP));
    }

    #[test]
    fn a_look_is_needed_where_the_pool_has_more_or_less_than_the_known_steps() {
        let mut steps = Steps::default();
        steps.learn(&at(0, 3 * STEP));
        assert!(steps.cover(&at(0, 1), 3 * STEP));
        assert!(
            !steps.cover(&at(0, 1), 2 * STEP),
            "the pool has given back an unknown step"
        );
        assert!(
            !steps.cover(&at(0, 1), 3 * STEP + 2 * MIB),
            "the pool has unknown steps"
        );
        assert!(!steps.cover(&at(0, 1), 4 * STEP));
        steps = Steps::default();
        steps.learn(&at(32, 1));
        assert!(!steps.cover(&at(0, 1), STEP));
        assert!(steps.cover(&at(32, 1), STEP));
    }

    #[test]
    fn a_pool_with_unknown_steps_is_looked_at_until_it_is_empty() {
        let mut steps = Steps::incomplete();
        steps.learn(&at(0, 1));
        assert!(!steps.cover(&at(0, 1), STEP));
        steps = Steps::default();
        let many = MOST as u64 * STEP;
        steps.learn(&at(0, many));
        assert!(steps.cover(&at(0, 1), many));
        steps.learn(&at(0, many + STEP));
        assert!(!steps.cover(&at(0, 1), many));
    }
}

//! Which steps of address space a pool's memory lies in: what lets most allocations do without a
//! look at the pool.
//!
//! A pool's memory comes in steps of 32 MiB that are aligned to it, and an allocation that makes
//! the pool grow lies in what it grew by, at least in part (measured, H100, 580.159.04: half a
//! million allocations in three streams, with and without work under way). So the steps in which an
//! allocation ever lay are all that the pool can have, whatever it gave back and took again
//! meanwhile. As long as they are no more than the pool had when it was last looked at, it cannot
//! have more now than it had then, if only steps that are known have been handed out since.
//!
//! One step may escape that: the pool grows, and serves the request from an older gap after all,
//! because work ended meanwhile that had kept it. Such a step is unused, and fits every request of
//! up to a step, so that no other follows it as long as it stays so: the headroom pays for it. Who
//! is given memory in it looks, and so does who asks for more than a step. Calls that run beside
//! each other have paid for a step each.
//!
//! Where the driver puts a pool's memory at other addresses than before (it does where it has given
//! some back, and where it puts the pieces of an unused reserve together for a request of more than
//! a step), more steps are known than the pool has, and every allocation is looked at, until it has
//! them all or nothing at all.

use std::ops::Range;

use super::STEP;
use crate::abi::DevicePtr;
use crate::account::maps::Set;

/// As many are known of a pool at most: 256 GiB, in 72 KiB.
const MOST: usize = 8192;

/// The steps of a pool that allocations have been in since it was last empty, as it is by default.
#[derive(Default)]
pub struct Steps {
    known: Set<u64>,
    /// There may be others.
    incomplete: bool,
}

impl Steps {
    /// Of a pool that may hold memory of which nothing is known.
    pub fn incomplete() -> Self {
        Steps {
            incomplete: true,
            ..Steps::default()
        }
    }

    /// Whether `range` lies in steps that are known, and the pool has had all of these when
    /// `reserved` bytes were seen.
    #[inline]
    pub fn cover(&self, range: &Range<DevicePtr>, reserved: u64) -> bool {
        self.bytes() == reserved
            && !self.incomplete
            && within(range).all(|step| self.known.contains(&step))
    }

    /// Bytes of the steps that are known.
    pub fn bytes(&self) -> u64 {
        self.known.len() as u64 * STEP
    }

    /// An allocation lies in `range`.
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

fn within(range: &Range<DevicePtr>) -> Range<u64> {
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
    fn what_lies_in_known_steps_needs_no_look() {
        let mut steps = Steps::default();
        assert!(!steps.cover(&at(0, 1), STEP));
        steps.learn(&at(0, 1));
        assert!(steps.cover(&at(0, 1), STEP));
        assert!(steps.cover(&at(31, MIB), STEP), "to its end");
        assert!(!steps.cover(&at(31, MIB + 1), STEP), "and not beyond");
        steps.learn(&at(31, MIB + 1));
        assert!(steps.cover(&at(31, MIB + 1), 2 * STEP));
        assert!(!steps.cover(&at(64, 1), 2 * STEP));
    }

    #[test]
    fn more_or_less_than_the_pool_has_says_nothing() {
        let mut steps = Steps::default();
        steps.learn(&at(0, 3 * STEP));
        assert!(steps.cover(&at(0, 1), 3 * STEP));
        assert!(!steps.cover(&at(0, 1), 2 * STEP), "given back, and which?");
        assert!(!steps.cover(&at(0, 1), 3 * STEP + 2 * MIB), "other steps");
        assert!(!steps.cover(&at(0, 1), 4 * STEP));
        steps = Steps::default();
        steps.learn(&at(32, 1));
        assert!(!steps.cover(&at(0, 1), STEP));
        assert!(steps.cover(&at(32, 1), STEP));
    }

    #[test]
    fn a_pool_that_is_not_known_wholly_is_looked_at_until_it_is_empty() {
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

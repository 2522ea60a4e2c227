//! Random numbers. They make competing processes choose different slots and waiting times. Their
//! statistical quality does not matter.

use super::os;
use std::time::{SystemTime, UNIX_EPOCH};

/// A xorshift generator of random numbers, seeded from the time, the process and the thread.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        let here = 0u8;
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_nanos() as u64);
        let seed = nanos
            ^ (&raw const here as u64).rotate_left(24)
            ^ u64::from(std::process::id()).rotate_left(40)
            ^ os::boot_ms();
        Self((seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random number below `end`; 0 if `end` is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11).checked_rem(end as u64).unwrap_or(0) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_bounded_and_spread() {
        let mut random = Random::new();
        let mut seen = [0; 8];
        for _ in 0..10_000 {
            seen[random.below(8)] += 1;
        }
        assert!(seen.iter().all(|&times| times > 500), "{seen:?}");
        assert_eq!(random.below(0), 0);
        let mut other = Random::new();
        assert!((0..100).any(|_| random.below(1 << 40) != other.below(1 << 40)));
    }
}

//! Times of the coarse wall clock.

use std::num::NonZeroU64;

/// A time of the kernel's coarse wall clock. Holds seconds and nanoseconds apart, so that reading
/// the clock and comparing two ticks need no division.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Tick(NonZeroU64);

/// Bits of a tick for the nanoseconds, which are less than 10⁹.
const NANOS: u32 = 30;

impl Tick {
    #[inline]
    pub(super) fn new(seconds: u64, nanos: u64) -> Self {
        Self(NonZeroU64::new(seconds << NANOS | nanos).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the tick as a word, which is never 0.
    #[inline]
    pub(super) const fn word(self) -> u64 {
        self.0.get()
    }

    /// Returns the seconds since 1970.
    #[inline]
    pub(super) const fn second(self) -> u64 {
        self.word() >> NANOS
    }

    /// Returns the milliseconds since 1970.
    pub(super) const fn ms(self) -> u64 {
        let nanos = self.word() & ((1 << NANOS) - 1);
        (self.second().wrapping_mul(1_000)).wrapping_add(nanos / 1_000_000)
    }
}

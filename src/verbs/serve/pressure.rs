//! Pressure on a group's memory, as the kernel's PSI gives it: the share of time in which at least
//! one request waited.
//!
//! A ledger keeps the waiting time of each request in the second in which the wait ended, in whole
//! seconds. So a wait has lasted for that time up to the end of this second. Several waits that
//! ended in one second count as one after the other.

use gpulimit_ledger::Period;
use std::time::Duration;

/// The windows in seconds for which the ratio is shown, as those of PSI.
pub const WINDOWS: [u64; 3] = [10, 60, 300];

/// Times in milliseconds since 1970 in which a request waited.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<(u64, u64)>);

impl Waits {
    /// Returns the waits that have ended, from the history by the second.
    pub fn ended(periods: &[Period]) -> Self {
        let of = |period: &Period| {
            let end = (period.start + 1) * 1_000;
            (end.saturating_sub(u64::from(period.waited) * 1_000), end)
        };
        let waited = periods.iter().filter(|period| period.waited > 0);
        Self(waited.map(of).collect())
    }

    /// Adds a wait that has lasted for this time.
    pub fn add_present(&mut self, waited: Duration, now: u64) {
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.0.push((now.saturating_sub(waited), now));
    }

    /// Returns for how many milliseconds of this time at least one request waited.
    pub fn covered(&mut self, from: u64, to: u64) -> u64 {
        self.0.sort_unstable();
        let (mut covered, mut reached) = (0, from);
        for (begin, end) in &self.0 {
            let (begin, end) = ((*begin).max(reached), (*end).min(to));
            if begin < end {
                covered += end - begin;
                reached = end;
            }
        }
        covered
    }

    /// Returns the share of each of [`WINDOWS`] in which at least one request waited.
    pub fn ratios(&mut self, now: u64) -> [f64; WINDOWS.len()] {
        WINDOWS.map(|seconds| {
            let from = now.saturating_sub(seconds * 1_000);
            self.covered(from, now) as f64 / (seconds * 1_000) as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn ended(ago: u64, waited: u32) -> Period {
        Period {
            start: NOW / 1_000 - ago - 1,
            waited,
            ..Period::default()
        }
    }

    #[test]
    fn overlapping_waits_count_once() {
        // The first wait began 9 s ago and ended 4 s ago, the second one 6 s and 3 s ago.
        let mut waits = Waits::ended(&[ended(4, 5), ended(3, 3), ended(100, 0)]);
        assert_eq!(waits.covered(NOW - 10_000, NOW), 6_000);
        assert_eq!(waits.covered(NOW - 5_000, NOW), 2_000);
        assert_eq!(waits.ratios(NOW), [0.6, 0.1, 0.02]);
        waits.add_present(Duration::from_millis(1_500), NOW);
        assert_eq!(waits.covered(NOW - 10_000, NOW), 7_500);
        waits.add_present(Duration::from_secs(1_000), NOW);
        assert_eq!(waits.ratios(NOW), [1.0, 1.0, 1.0]);
        assert_eq!(Waits::default().ratios(NOW), [0.0, 0.0, 0.0]);
    }
}

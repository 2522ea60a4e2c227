//! The record that a process keeps of its own charges on one device.
//!
//! Any member of a group can write the words of other processes. Each process therefore compares
//! its word with its record at every charge and uncharge, and adds missing units again.
//!
//! A word and its record cannot change in one step. They can be compared only while no thread is in
//! the middle of a change, so the record also counts such threads.

use super::atomic::{Ordering, Word};

/// Bits of a record: units (0 to 31), threads in a change (32 to 47), wrapping count of begun
/// changes (48 to 63).
const THREAD: u64 = 1 << 32;
const BEGUN: u64 = 1 << 48;
const THREADS: u64 = BEGUN - THREAD;
const UNITS: u64 = THREAD - 1;

/// The record of one device.
#[derive(Debug, Default)]
pub(super) struct Record<W>(W);

#[cfg(all(test, loom))]
impl Record<loom::sync::atomic::AtomicU64> {
    /// Returns a record with this many charged units.
    pub(super) fn of(units: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(units))
    }
}

#[cfg(all(test, loom))]
impl<W> Record<W> {
    /// Returns the word, for a model that watches it.
    pub(super) fn word(&self) -> &W {
        &self.0
    }
}

impl<W: Word> Record<W> {
    /// Begins a change of this process's word. Returns the units missing from the word, 0 if
    /// unknown. `charged` gets the recorded units and returns those that the ledger counts; it must
    /// read with [`Ordering::Acquire`].
    #[inline]
    pub(super) fn begin(&self, charged: impl FnOnce(u64) -> u64) -> u64 {
        let now = self
            .0
            .fetch_add(BEGUN + THREAD, Ordering::AcqRel)
            .wrapping_add(BEGUN + THREAD);
        if now & THREADS != THREAD {
            return 0;
        }
        let charged = charged(now & UNITS);
        let lacks = (now & UNITS).saturating_sub(charged);
        if lacks > 0 && self.0.load(Ordering::Relaxed) != now {
            // Another thread has begun a change meanwhile, so the word and the record cannot be
            // compared.
            return 0;
        }
        lacks
    }

    /// Returns the recorded units.
    pub(super) fn units(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & UNITS
    }

    /// Ends a change whose net effect on the word is zero.
    #[inline]
    pub(super) fn withdrawn(&self) {
        self.0.fetch_sub(THREAD, Ordering::AcqRel);
    }

    /// Ends a change that added `n` units to the word.
    #[inline]
    pub(super) fn added(&self, n: u64) {
        self.0.fetch_sub(THREAD - n, Ordering::AcqRel);
    }

    /// Ends a change that took `n` units from the word.
    #[inline]
    pub(super) fn taken(&self, n: u64) {
        // Subtracting more than the recorded units would also change the number of threads.
        let n = n.min(self.0.load(Ordering::Relaxed) & UNITS);
        self.0.fetch_sub(THREAD + n, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;

    #[test]
    fn a_record_detects_units_taken_by_another_process() {
        let record = Record::<AtomicU64>::default();
        assert_eq!(record.begin(|_| 0), 0);
        record.added(10);
        let complete = |recorded| {
            assert_eq!((recorded, record.units()), (10, 10));
            10
        };
        assert_eq!(record.begin(complete), 0);
        record.taken(4);
        assert_eq!(record.begin(|_| 1), 5);
        record.withdrawn();
        assert_eq!(
            record.begin(|_| 7),
            0,
            "more units in the word than in the record are no error"
        );
        record.taken(100);
        assert_eq!(record.begin(|_| 0), 0);
        record.added(3);
        assert_eq!(
            record.begin(|_| 1),
            2,
            "units that were never recorded do not count as missing"
        );
    }

    #[test]
    fn a_record_reports_nothing_while_another_thread_changes_the_word() {
        let record = Record::<AtomicU64>::default();
        record.begin(|_| 0);
        record.added(10);
        record.begin(|_| 10);
        assert_eq!(record.begin(|_| unreachable!("not asked")), 0);
        record.withdrawn();
        record.taken(10);
        assert_eq!(record.begin(|_| 0), 0);
        // Another thread begins a change between the two times that the record is read.
        record.added(10);
        let begins_meanwhile = |_| {
            record.begin(|_| unreachable!("not asked"));
            0
        };
        assert_eq!(record.begin(begins_meanwhile), 0);
    }

    #[test]
    fn the_count_of_begun_changes_may_wrap() {
        let record = Record::<AtomicU64>::default();
        record.begin(|_| 0);
        record.added(3);
        for _ in 0..(1 << 16) + 5 {
            assert_eq!(record.begin(|_| 3), 0);
            record.withdrawn();
        }
        assert_eq!(record.begin(|_| 0), 3);
    }
}

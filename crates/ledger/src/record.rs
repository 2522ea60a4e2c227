//! The record that a process keeps of its own charges on one device.
//!
//! Every process that may charge in a ledger can also write the words of other processes. A process
//! therefore keeps its own count outside the file, and compares that count with its word at every
//! charge and uncharge. If another process has lowered the word, the difference is added to the
//! word again.
//!
//! A thread cannot change the word and the record in one step. The two can only be compared while
//! no thread is between these two changes. The record itself shows whether that is so. Beside the
//! units, it holds the number of threads that are between the two changes. It also counts how often
//! a thread began a change.

use super::atomic::{Ordering, Word};

/// A record has three parts. Bits 0 to 31 are units. Bits 32 to 47 are the number of threads that
/// have begun and not yet ended a change. Bits 48 to 63 count how often a thread began a change,
/// and wrap around.
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

impl<W: Word> Record<W> {
    /// Begins a change of the word. Call this method before changing the word. Returns how many
    /// units the word lacks. Returns 0 if only this process has changed the word, or if the method
    /// cannot determine what the word lacks. `charged` must read the units of the word with
    /// [`Ordering::Acquire`].
    #[inline]
    pub(super) fn begin(&self, charged: impl FnOnce() -> u64) -> u64 {
        let now = self
            .0
            .fetch_add(BEGUN + THREAD, Ordering::AcqRel)
            .wrapping_add(BEGUN + THREAD);
        if now & THREADS != THREAD {
            return 0;
        }
        let charged = charged();
        let lacks = (now & UNITS).saturating_sub(charged);
        if lacks > 0 && self.0.load(Ordering::Relaxed) != now {
            // Another thread began a change of the word meanwhile, so the word and the record
            // cannot be compared.
            return 0;
        }
        lacks
    }

    /// Ends a change that left the word as it was.
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
        // The subtraction is capped at the recorded units. A larger subtraction would borrow from
        // the bits that hold the number of threads.
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
        assert_eq!(record.begin(|| 0), 0);
        record.added(10);
        assert_eq!(record.begin(|| 10), 0);
        record.taken(4);
        assert_eq!(record.begin(|| 1), 5);
        record.withdrawn();
        assert_eq!(
            record.begin(|| 7),
            0,
            "additional units harm only this process"
        );
        record.taken(100);
        assert_eq!(record.begin(|| 0), 0);
        record.added(3);
        assert_eq!(
            record.begin(|| 1),
            2,
            "units that were never added are not lacking"
        );
    }

    #[test]
    fn a_record_reports_nothing_while_another_thread_changes_the_word() {
        let record = Record::<AtomicU64>::default();
        record.begin(|| 0);
        record.added(10);
        record.begin(|| 10);
        assert_eq!(record.begin(|| unreachable!("not asked")), 0);
        record.withdrawn();
        record.taken(10);
        assert_eq!(record.begin(|| 0), 0);
        // Another thread begins a change of the word between the two looks at the record.
        record.added(10);
        let begins_meanwhile = || {
            record.begin(|| unreachable!("not asked"));
            0
        };
        assert_eq!(record.begin(begins_meanwhile), 0);
    }

    #[test]
    fn the_count_of_begun_changes_may_wrap() {
        let record = Record::<AtomicU64>::default();
        record.begin(|| 0);
        record.added(3);
        for _ in 0..(1 << 16) + 5 {
            assert_eq!(record.begin(|| 3), 0);
            record.withdrawn();
        }
        assert_eq!(record.begin(|| 0), 3);
    }
}

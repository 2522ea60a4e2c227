//! What a process itself remembers of its charges on one device.
//!
//! Who may be charged in a ledger can also write it, other processes' words included. A process
//! therefore keeps its own count outside of the file and compares the two at every charge and
//! return: a word that somebody has lowered is put right.
//!
//! Threads change the count and the word one after the other, so only a moment in which no other
//! thread is between the two says anything. One word tells that moment: below the units it has the
//! number of threads that are between, and how often one began.

use super::atomic::{Ordering, Word};

/// Bits 0 to 31 are units, 32 to 47 threads that are between count and word, 48 to 63 how often one
/// began, which wraps.
const THREAD: u64 = 1 << 32;
const BEGUN: u64 = 1 << 48;
const THREADS: u64 = BEGUN - THREAD;
const UNITS: u64 = THREAD - 1;

/// The count of one device.
#[derive(Debug, Default)]
pub(super) struct Record<W>(W);

#[cfg(all(test, loom))]
impl Record<loom::sync::atomic::AtomicU64> {
    /// With so many units.
    pub(super) fn of(units: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(units))
    }
}

impl<W: Word> Record<W> {
    /// To be said before the word is changed. The answer is what the word lacks, 0 as long as
    /// nobody but this process has changed it, and then or when it cannot be told; `charged` reads
    /// the units of the word, with [`Ordering::Acquire`].
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
            // Somebody began meanwhile.
            return 0;
        }
        lacks
    }

    /// To be said after it: the word has not changed.
    #[inline]
    pub(super) fn withdrawn(&self) {
        self.0.fetch_sub(THREAD, Ordering::AcqRel);
    }

    /// To be said after it: `n` units were added.
    #[inline]
    pub(super) fn added(&self, n: u64) {
        self.0.fetch_sub(THREAD - n, Ordering::AcqRel);
    }

    /// To be said after it: `n` units were taken away.
    #[inline]
    pub(super) fn taken(&self, n: u64) {
        // What was taken away without having been added says nothing about the threads.
        let n = n.min(self.0.load(Ordering::Relaxed) & UNITS);
        self.0.fetch_sub(THREAD + n, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;

    #[test]
    fn what_a_word_lacks_is_what_was_taken_out_of_it() {
        let record = Record::<AtomicU64>::default();
        assert_eq!(record.begin(|| 0), 0);
        record.added(10);
        assert_eq!(record.begin(|| 10), 0);
        record.taken(4);
        assert_eq!(record.begin(|| 1), 5);
        record.withdrawn();
        assert_eq!(record.begin(|| 7), 0, "more is nobody's harm but its own");
        record.taken(100);
        assert_eq!(record.begin(|| 0), 0);
        record.added(3);
        assert_eq!(
            record.begin(|| 1),
            2,
            "none are owed for what was not there"
        );
    }

    #[test]
    fn while_another_thread_is_at_it_nothing_can_be_told() {
        let record = Record::<AtomicU64>::default();
        record.begin(|| 0);
        record.added(10);
        record.begin(|| 10);
        assert_eq!(record.begin(|| unreachable!("not asked")), 0);
        record.withdrawn();
        record.taken(10);
        assert_eq!(record.begin(|| 0), 0);
        // One that begins between the two looks.
        record.added(10);
        let begins_meanwhile = || {
            record.begin(|| unreachable!("not asked"));
            0
        };
        assert_eq!(record.begin(begins_meanwhile), 0);
    }

    #[test]
    fn the_number_of_beginnings_wraps_without_harm() {
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

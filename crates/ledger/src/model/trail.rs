//! Models of the trail: writers that die at any step, beside other writers and readers.

use super::super::atomic::{Ordering, Word};
use super::super::{stamp, trail};
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::cell::Cell;
use std::sync::Arc;

/// Number of steps of a writer that change words: taking a number, and four stores.
const STEPS: u32 = 5;

/// A trail of `N` events. Each consists of two words, both of which hold the writer's name.
struct Trail<const N: usize> {
    head: AtomicU64,
    entries: [[AtomicU64; 3]; N],
}

/// A word as a process sees it that dies after some steps: its later steps change nothing.
struct Mortal<'a> {
    word: &'a AtomicU64,
    left: &'a Cell<u32>,
}

impl Mortal<'_> {
    /// Returns whether the process lives to take one more step.
    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl Word for Mortal<'_> {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        if self.lives() {
            self.word.store(value, order);
        }
    }

    fn fetch_add(&self, _: u64, _: Ordering) -> u64 {
        unreachable!("the trail adds nothing")
    }

    fn fetch_sub(&self, _: u64, _: Ordering) -> u64 {
        unreachable!("the trail subtracts nothing")
    }

    fn replace(&self, before: u64, after: u64, set: Ordering) -> Result<u64, u64> {
        // A dead process's program runs on with any value. Failures take no step, so that the
        // number of steps does not depend on other writers.
        if self.left.get() == 0 {
            return Ok(before);
        }
        Word::replace(self.word, before, after, set).inspect(|_| {
            self.lives();
        })
    }

    fn fence(order: Ordering) {
        AtomicU64::fence(order);
    }
}

impl<const N: usize> Trail<N> {
    /// Returns a trail with an event of the writer 1 in every entry.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            head: AtomicU64::new(N as u64),
            entries: std::array::from_fn(|at| [at as u64 + 1, 1, 1].map(AtomicU64::new)),
        })
    }

    /// Adds an event of a writer that dies after this number of steps.
    fn add(&self, writer: u64, steps: u32) {
        let left = Cell::new(steps);
        let mortal = |word| Mortal { word, left: &left };
        let number = trail::take_number(&mortal(&self.head), |_| Some(())).expect("few writers");
        let [stamp, words @ ..] = &self.entries[number as usize % N];
        stamp::write(&mortal(stamp), number, || {
            for word in words {
                mortal(word).store(writer, Ordering::Relaxed);
            }
        });
    }

    /// Returns the writers of the events in the trail.
    fn read(&self) -> Vec<u64> {
        let head = self.head.load(Ordering::Acquire);
        let numbers = head.saturating_sub(N as u64)..head;
        let event = |number: u64| {
            let [stamp, words @ ..] = &self.entries[number as usize % N];
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            let [one, other] = stamp::read(stamp, number, || words.each_ref().map(load))?;
            assert_eq!(one, other, "an event of two writers");
            Some(one)
        };
        numbers.filter_map(event).collect()
    }
}

#[test]
fn a_writer_that_dies_at_any_step_spoils_no_event() {
    for steps in 0..=STEPS {
        super::weak::bounded_model(None, move || {
            let trail = Trail::<2>::new();
            let dying = Arc::clone(&trail);
            let writer = thread::spawn(move || dying.add(2, steps));
            trail.add(3, STEPS);
            writer.join().expect("the writer");
            let dead_leaves_number = steps > 0;
            let read = trail.read();
            assert!(read.contains(&3), "{read:?}");
            assert_eq!(read.contains(&2), steps == STEPS, "{read:?}");
            assert_eq!(read.contains(&1), !dead_leaves_number, "{read:?}");
        });
    }
}

#[test]
fn an_entry_of_a_dead_writer_is_written_again() {
    for steps in 0..=STEPS {
        super::weak::bounded_model(None, move || {
            let trail = Trail::<1>::new();
            trail.add(2, steps);
            let reading = Arc::clone(&trail);
            let reader = thread::spawn(move || reading.read());
            trail.add(3, STEPS);
            reader.join().expect("the reader");
            assert_eq!(trail.read(), [3]);
        });
    }
}

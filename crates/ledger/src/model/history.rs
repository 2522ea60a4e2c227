//! Models of the history: members that write one word at the same time, and members whose usage
//! changes at the same time.

use super::super::atomic::{Ordering, Word};
use super::super::charge::{self, Charged, Idle, Rung, UNIT};
use super::super::history::{change, value};
use super::super::tick::Tick;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

const PERIOD: u64 = 100;

fn raise(word: &AtomicU64, period: u64, units: u64) {
    change(word, period, |known| {
        known.is_none_or(|known| units > known).then_some(units)
    });
}

/// Writes the word from three members, each with a period and a usage, and returns the word.
fn written(by: [(u64, u64); 3]) -> Arc<AtomicU64> {
    let word = Arc::new(AtomicU64::new((PERIOD - 7) << 32 | 99));
    let writers = by.map(|(period, units)| {
        let word = Arc::clone(&word);
        thread::spawn(move || raise(&word, period, units))
    });
    for writer in writers {
        writer.join().expect("the thread ended");
    }
    word
}

#[test]
fn members_that_write_at_once_lose_no_peak() {
    super::weak::bounded_model(None, || {
        let word = written([(PERIOD, 5), (PERIOD, 9), (PERIOD, 7)]);
        assert_eq!(value(&*word, PERIOD), Some(9));
    });
}

#[test]
fn a_member_that_sleeps_before_it_writes_harms_no_later_period() {
    super::weak::bounded_model(None, || {
        let word = written([(PERIOD, 9), (PERIOD + 1, 3), (PERIOD + 1, 4)]);
        assert_eq!(value(&*word, PERIOD + 1), Some(4));
    });
}

/// The words of a ledger of two members that records its largest usage.
struct Book {
    words: [AtomicU64; 2],
    idle: [AtomicU64; 2],
    high_water: AtomicU64,
    max: AtomicU64,
}

impl Book {
    /// Returns a ledger in which each member uses 2 units and has this many idle ones.
    fn new(idle: [u64; 2]) -> Arc<Self> {
        Arc::new(Self {
            words: idle.map(|idle| AtomicU64::new(2 + idle)),
            idle: idle.map(|idle| AtomicU64::new(idle * UNIT)),
            high_water: AtomicU64::new(2),
            max: AtomicU64::new(PERIOD << 32 | 4),
        })
    }

    fn charges(&self) -> impl Iterator<Item = Charged<'_, AtomicU64>> {
        let both = self.words.iter().zip(&self.idle);
        both.map(|(word, idle)| Charged { word, idle })
    }

    /// Records the present usage.
    fn record(&self) {
        let units = charge::in_use(|| self.charges(), thread::yield_now);
        raise(&self.max, PERIOD, units);
    }
}

/// A member's place in the ledger.
struct Seat(Arc<Book>, usize);

impl Seat {
    fn charge(&self) {
        charge::attempt(std::slice::from_ref(self), 6, &()).expect("no limit");
    }

    /// Begins to use all idle units, as [`super::super::Slot::note_use`] records them.
    fn use_idle(&self) {
        Idle::remove(self);
        AtomicU64::fence(Ordering::SeqCst);
        self.0.record();
    }
}

/// The idle bytes of a member, which are 4 units or none.
impl Idle for Seat {
    fn add(&self) {
        self.0.idle[self.1].store(4 * UNIT, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.idle[self.1].store(0, Ordering::Relaxed);
    }
}

impl Rung for Seat {
    type Word = AtomicU64;

    fn own(&self) -> Charged<'_, AtomicU64> {
        Charged {
            word: &self.0.words[self.1],
            idle: &self.0.idle[self.1],
        }
    }

    fn high_water(&self) -> &AtomicU64 {
        &self.0.high_water
    }

    fn charges<'a>(&'a self, _: u64) -> impl Iterator<Item = Charged<'a, AtomicU64>>
    where
        AtomicU64: 'a,
    {
        self.0.charges()
    }

    fn max(&self) -> u64 {
        u64::MAX
    }

    fn records(&self) -> bool {
        true
    }

    fn note(&self, _: u64, _: u64, _: &AtomicU64) {}

    fn record(&self, _: Tick, before: Option<u64>, rise: u64) {
        match before {
            Some(before) => raise(&self.0.max, PERIOD, before + rise),
            None => self.0.record(),
        }
    }

    fn begin(&self, _: &AtomicU64, _: Option<Tick>) -> bool {
        true
    }

    fn withdrawn(&self) {}

    fn added(&self, _: u64) {}

    fn taken(&self, _: u64) {}
}

/// Lets two members with idle units act at the same time, and returns the largest recorded usage.
/// Before, each member uses 2 units.
fn largest(idle: [u64; 2], acts: [fn(&Seat); 2]) -> u64 {
    let book = Book::new(idle);
    let [mine, others] = [0, 1].map(|slot| Seat(Arc::clone(&book), slot));
    let [my_act, other_act] = acts;
    let other = thread::spawn(move || other_act(&others));
    my_act(&mine);
    other.join().expect("the other member");
    value(&book.max, PERIOD).expect("of this period")
}

#[test]
fn of_two_charges_at_once_the_peak_is_recorded() {
    super::weak::bounded_model(None, || {
        assert_eq!(largest([0, 0], [Seat::charge, Seat::charge]), 2 + 2 + 6 + 6);
    });
}

#[test]
fn a_charge_and_idle_units_that_come_into_use_are_recorded_together() {
    super::weak::bounded_model(None, || {
        assert_eq!(
            largest([4, 0], [Seat::use_idle, Seat::charge]),
            2 + 2 + 4 + 6
        );
    });
}

#[test]
fn idle_units_of_two_members_that_come_into_use_are_recorded_together() {
    super::weak::bounded_model(None, || {
        assert_eq!(
            largest([4, 4], [Seat::use_idle, Seat::use_idle]),
            2 + 2 + 4 + 4
        );
    });
}

#[test]
fn units_charged_ahead_beside_a_charge_hide_no_peak() {
    super::weak::bounded_model(None, || {
        let ahead: fn(&Seat) =
            |seat| charge::attempt(std::slice::from_ref(seat), 4, seat).expect("no limit");
        assert_eq!(largest([0, 0], [ahead, Seat::charge]), 2 + 2 + 6);
    });
}

#[test]
fn a_slot_that_is_emptied_beside_a_charge_hides_no_peak() {
    super::weak::bounded_model(None, || {
        let leave: fn(&Seat) = |seat| charge::empty(&seat.own());
        let max = largest([4, 0], [leave, Seat::charge]);
        assert!(max >= 2 + 6, "{max}");
    });
}

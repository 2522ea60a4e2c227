//! Models of the charge algorithm. Loom tries every order of steps, and every value that the memory
//! model allows.
//!
//! Each thread plays a process with its own slot, unless noted. A request waits for a few steps
//! instead of a second, and may then be refused.

use super::super::atomic::{Ordering, Word};
use super::super::charge::{self, Charged, Reaped, Refusal, Rung, Surroundings, charged};
use super::super::record::Record;
use super::super::tick::Tick;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

const N: usize = 3;

/// The words of a model's ledger.
struct Book {
    words: [AtomicU64; N],
    high_water: AtomicU64,
    /// The idle bytes of every slot. These models do not record, so the word is never read.
    idle: AtomicU64,
}

impl Book {
    fn new(held: [u64; N], high_water: u64) -> Arc<Self> {
        Arc::new(Self {
            words: held.map(AtomicU64::new),
            high_water: AtomicU64::new(high_water),
            idle: AtomicU64::new(0),
        })
    }

    fn seat(self: &Arc<Self>, slot: usize, max: u64) -> Seat {
        Seat {
            book: Arc::clone(self),
            slot,
            max,
        }
    }

    /// Makes `high_water` include a slot, as a process does that claims the slot.
    fn raise(&self, slot: usize) {
        self.high_water.fetch_max(slot as u64 + 1, Ordering::SeqCst);
    }

    fn words(&self) -> [u64; N] {
        [0, 1, 2].map(|slot| self.words[slot].load(Ordering::SeqCst))
    }
}

struct Seat {
    book: Arc<Book>,
    slot: usize,
    max: u64,
}

impl Rung for Seat {
    type Word = AtomicU64;

    fn own(&self) -> Charged<'_, AtomicU64> {
        Charged {
            word: &self.book.words[self.slot],
            idle: &self.book.idle,
        }
    }

    fn high_water(&self) -> &AtomicU64 {
        &self.book.high_water
    }

    fn charges<'a>(&'a self, high_water: u64) -> impl Iterator<Item = Charged<'a, AtomicU64>>
    where
        AtomicU64: 'a,
    {
        let idle = &self.book.idle;
        let words = &self.book.words[..high_water as usize];
        words.iter().map(move |word| Charged { word, idle })
    }

    fn max(&self) -> u64 {
        self.max
    }

    // The model of the history has a rung that records.
    fn records(&self) -> bool {
        false
    }

    fn record(&self, _: Tick, _: Option<u64>, _: u64) {}

    fn note(&self, total: u64, _: u64, _: &AtomicU64) {
        assert!(
            total <= self.max,
            "granted although the sum {total} exceeds the limit {}",
            self.max
        );
    }

    // These models do not keep records of a process's own charges. Further models below do so.
    fn begin(&self, _: &AtomicU64, _: Option<Tick>) -> bool {
        true
    }

    fn withdrawn(&self) {}

    fn added(&self, _: u64) {}

    fn taken(&self, _: u64) {}
}

/// A model's [`Surroundings`]: a request can wait for `steps` steps. No process has idle memory,
/// and no process is dead.
struct Patience {
    steps: u32,
    over: bool,
}

impl Surroundings<Seat> for Patience {
    fn reclaim(&mut self) -> bool {
        false
    }

    fn reap(&mut self, _: &Seat) -> Reaped {
        Reaped::default()
    }

    fn ask_others(&mut self, _: &Seat, _: u64, _: u64) -> bool {
        false
    }

    fn back_off(&mut self) -> bool {
        thread::yield_now();
        self.over = self.steps == 0;
        self.steps = self.steps.saturating_sub(1);
        !self.over
    }

    fn wait_for_drain(&mut self) -> bool {
        unreachable!("no process is dead")
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Outcome {
    Granted,
    /// Refused because the memory granted to other processes left no room.
    Refused,
    OutOfPatience,
}

fn charge(seats: &[Seat], n: u64, patience: u32) -> Outcome {
    let mut patience = Patience {
        steps: patience,
        over: false,
    };
    let result = charge::attempt(seats, n, &())
        .or_else(|level| charge::contend(seats, n, level, &mut patience, &()));
    match result {
        Ok(()) => Outcome::Granted,
        Err(Refusal { .. }) if patience.over => Outcome::OutOfPatience,
        Err(Refusal { .. }) => Outcome::Refused,
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    bounded_model(None, run);
}

/// Runs a model. `preemptions` bounds the number of preemptions; `None` means no bound.
pub(super) fn bounded_model(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    // A backtrace needs more stack than loom's threads have.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(run);
}

#[test]
fn one_of_two_requests_for_the_last_bytes_is_granted() {
    model(|| {
        let book = Book::new([0, 0, 0], 2);
        let other = book.seat(1, 10);
        let handle = thread::spawn(move || charge(&[other], 6, 2));
        let mine = charge(&[book.seat(0, 10)], 6, 2);
        let others = handle.join().expect("the other process");
        assert!([mine, others] != [Outcome::Granted; 2], "both were granted");
        assert!(
            [mine, others] != [Outcome::Refused; 2],
            "both requests were refused, although one of them fits the limit"
        );
        if mine == Outcome::Refused {
            assert_eq!(
                others,
                Outcome::Granted,
                "a request was refused, although the other was not granted"
            );
        }
        if others == Outcome::Refused {
            assert_eq!(
                mine,
                Outcome::Granted,
                "a request was refused, although the other was not granted"
            );
        }
        let expect = |outcome| if outcome == Outcome::Granted { 6 } else { 0 };
        assert_eq!(
            book.words(),
            [expect(mine), expect(others), 0],
            "undecided units are left"
        );
    });
}

#[test]
fn a_request_in_a_new_slot_sees_the_other_or_is_seen() {
    model(|| {
        let book = Book::new([0, 0, 0], 1);
        let newcomer = book.seat(1, 10);
        let handle = thread::spawn(move || {
            newcomer.book.raise(1);
            charge(&[newcomer], 6, 1)
        });
        let mine = charge(&[book.seat(0, 10)], 6, 1);
        let others = handle.join().expect("the newcomer");
        assert!([mine, others] != [Outcome::Granted; 2], "both were granted");
    });
}

#[test]
fn a_withdrawn_attempt_causes_no_refusal() {
    model(|| {
        let book = Book::new([0, 0, 3], 3);
        let greedy = book.seat(1, 10);
        let handle = thread::spawn(move || charge(&[greedy], 8, 1));
        let mine = charge(&[book.seat(0, 10)], 4, 2);
        let others = handle.join().expect("the greedy process");
        assert_ne!(others, Outcome::Granted, "3 + 8 exceeds the limit 10");
        assert_ne!(mine, Outcome::Refused, "3 + 4 fits the limit 10");
    });
}

/// Runs `climb` in two groups, of which the upper refuses the request. Meanwhile another process
/// charges only in the lower group.
fn two_levels(climb: fn(&[Seat], u64)) {
    model(move || {
        let leaf = Book::new([0, 0, 0], 2);
        let root = Book::new([0, 0, 3], 3);
        let path = [leaf.seat(1, 10), root.seat(1, 4)];
        let handle = thread::spawn(move || climb(&path, 6));
        let mine = charge(&[leaf.seat(0, 10)], 5, 2);
        handle.join().expect("the process in two groups ends");
        assert_ne!(
            mine,
            Outcome::Refused,
            "the other request was never granted"
        );
    });
}

#[test]
fn a_refusal_at_the_root_causes_no_refusal_below() {
    two_levels(|path, n| {
        assert_ne!(charge(path, n, 1), Outcome::Granted);
    });
}

#[test]
fn memory_that_moves_during_a_look_is_not_counted_twice() {
    model(|| {
        let book = Book::new([0, 6, 0], 3);
        let (from, to) = (book.seat(1, 10), book.seat(2, 10));
        let handle = thread::spawn(move || {
            charge::uncharge(&[from], 6);
            charge(&[to], 6, 2)
        });
        let mine = charge(&[book.seat(0, 10)], 4, 2);
        let moved = handle.join().expect("the mover");
        assert_ne!(mine, Outcome::Refused, "6 + 4 never exceeds 10");
        assert_ne!(moved, Outcome::Refused, "4 + 6 never exceeds 10");
    });
}

/// A process takes over 6 units of a dead one, and empties its slot. Meanwhile another process
/// charges. `take_over` returns whether the slot may be emptied.
fn taken_over_meanwhile(take_over: fn(&Seat) -> bool, max: u64) {
    model(move || {
        let book = Book::new([0, 0, 6], 3);
        let other = book.seat(1, max);
        let handle = thread::spawn(move || charge::attempt(&[other], 6, &()).is_ok());
        let is_over = take_over(&book.seat(0, max));
        if is_over {
            // No load before the store: loom does not preempt between the two.
            book.words[2].store(0, Ordering::Release);
        }
        let mine = handle.join().expect("the other process");
        assert!(
            !mine || max >= 12,
            "granted, although the dead one's memory is charged"
        );
        assert!(is_over || max < 12, "the request and the memory fit");
        let left = if is_over { [6, 0] } else { [0, 6] };
        assert_eq!(book.words(), [left[0], if mine { 6 } else { 0 }, left[1]]);
    });
}

#[test]
fn units_that_are_taken_over_are_not_missed() {
    for max in [10, 12] {
        taken_over_meanwhile(|heir| charge::add_moved(std::slice::from_ref(heir), 6), max);
    }
}

#[test]
#[should_panic(expected = "although the dead one's memory is charged")]
fn taking_over_without_a_look_at_requests_is_detected() {
    taken_over_meanwhile(
        |heir| {
            charge::add_unchecked(std::slice::from_ref(heir), 6);
            true
        },
        10,
    );
}

#[test]
fn two_threads_of_one_process_share_a_word() {
    model(|| {
        let book = Book::new([0, 0, 0], 1);
        let other = book.seat(0, 10);
        let handle = thread::spawn(move || charge(&[other], 6, 2));
        let mine = charge(&[book.seat(0, 10)], 6, 2);
        let others = handle.join().expect("the other thread");
        assert!([mine, others] != [Outcome::Granted; 2], "both were granted");
        let granted = [mine, others]
            .iter()
            .filter(|&&o| o == Outcome::Granted)
            .count() as u64;
        assert_eq!(book.words(), [6 * granted, 0, 0]);
    });
}

/// An idle counter for models. Each change is one store, because loom does not preempt between a
/// load and a store.
struct Ahead<'a>(&'a AtomicU64, u64);

impl charge::Idle for Ahead<'_> {
    fn add(&self) {
        self.0.store(self.1, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Runs `act` while a reader computes its 2 used units. If the reader gives up, the result is not
/// checked.
fn used_meanwhile(act: fn(&[Seat], &AtomicU64), idle: u64) {
    model(move || {
        let book = Book::new([2 + idle, 0, 0], 1);
        let shown = Arc::new(AtomicU64::new(idle));
        let (seat, figure) = (book.seat(0, 10), Arc::clone(&shown));
        let handle = thread::spawn(move || act(&[seat], &figure));
        let mut looks = 2;
        let again = || {
            thread::yield_now();
            looks -= 1;
            looks > 0
        };
        let word = &book.words[0];
        let (units, idle) = charge::settled(word, || shown.load(Ordering::Relaxed), again);
        if looks > 0 {
            assert_eq!(
                charge::granted(units),
                2 + idle,
                "units charged ahead were seen as used"
            );
        }
        handle.join().expect("the process");
    });
}

#[test]
fn units_charged_ahead_are_never_seen_as_used() {
    used_meanwhile(
        |seats, idle| charge::attempt(seats, 4, &Ahead(idle, 4)).expect("room"),
        0,
    );
}

#[test]
fn units_given_back_unused_are_never_seen_as_used() {
    used_meanwhile(
        |seats, idle| charge::uncharge_idle(seats, 4, &Ahead(idle, 4)),
        4,
    );
}

#[test]
#[should_panic(expected = "units charged ahead were seen as used")]
fn a_counter_that_changes_before_the_charge_is_detected() {
    used_meanwhile(
        |seats, idle| {
            charge::Idle::add(&Ahead(idle, 4));
            charge::attempt(seats, 4, &()).expect("room");
        },
        0,
    );
}

/// A process's charge, kept twice: in a word of the ledger, and in the process's own record.
struct Remembered {
    word: AtomicU64,
    record: Record<AtomicU64>,
}

impl Remembered {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(5),
            record: Record::of(5),
        })
    }

    fn begin(&self) -> u64 {
        self.record
            .begin(|_| charged(self.word.load(Ordering::Acquire)))
    }

    fn take(&self, n: u64) -> u64 {
        let lacks = self.begin();
        self.word.fetch_sub(n, Ordering::SeqCst);
        self.record.taken(n);
        lacks
    }

    fn add(&self, n: u64) -> u64 {
        let lacks = self.begin();
        self.word.fetch_add(n, Ordering::Release);
        self.record.added(n);
        lacks
    }
}

#[test]
fn threads_of_one_process_do_not_distrust_each_other() {
    model(|| {
        let shared = Remembered::new();
        let other = Arc::clone(&shared);
        let handle = thread::spawn(move || [other.take(2), other.add(3)]);
        let mine = [shared.add(1), shared.take(4)];
        let others = handle.join().expect("the other thread");
        assert_eq!(
            [mine, others],
            [[0; 2]; 2],
            "a thread's change was taken for an error"
        );
        assert_eq!(shared.begin(), 0);
        assert_eq!(shared.word.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn units_taken_by_another_process_are_detected_by_the_next_lone_thread() {
    model(|| {
        let shared = Remembered::new();
        let stranger = Arc::clone(&shared);
        let handle = thread::spawn(move || stranger.word.fetch_sub(4, Ordering::Relaxed));
        let found = shared.add(1);
        handle.join().expect("the stranger");
        assert!(found == 0 || found == 4, "{found}");
        assert_eq!(shared.begin(), 4);
    });
}

// Charge algorithms with known errors. Their models must fail, which shows that the models can
// detect errors.

#[test]
#[should_panic(expected = "both were granted")]
fn checking_before_publishing_is_detected() {
    fn wrong(seat: &Seat, n: u64) -> bool {
        let fits = charge::look(seat).charged + n <= seat.max();
        if fits {
            seat.own().word.fetch_add(n, Ordering::SeqCst);
        }
        fits
    }
    model(|| {
        let book = Book::new([0, 0, 0], 2);
        let other = book.seat(1, 10);
        let handle = thread::spawn(move || wrong(&other, 6));
        let mine = wrong(&book.seat(0, 10), 6);
        let others = handle.join().expect("the other process");
        assert!(!(mine && others), "both were granted");
    });
}

#[test]
#[should_panic(expected = "both were granted")]
fn publishing_without_a_fence_is_detected() {
    fn wrong(seat: &Seat, n: u64) -> bool {
        seat.own().word.fetch_add(n, Ordering::AcqRel);
        let sum: u64 = seat
            .charges(2)
            .map(|charge| charged(Word::load(charge.word, Ordering::Acquire)))
            .sum();
        sum <= seat.max()
    }
    model(|| {
        let book = Book::new([0, 0, 0], 2);
        let other = book.seat(1, 10);
        let handle = thread::spawn(move || wrong(&other, 6));
        let mine = wrong(&book.seat(0, 10), 6);
        let others = handle.join().expect("the other process");
        assert!(!(mine && others), "both were granted");
    });
}

#[test]
#[should_panic(expected = "the other request was never granted")]
fn deciding_levels_one_by_one_is_detected() {
    two_levels(|path, n| {
        let [leaf, root] = path else { unreachable!() };
        if charge::attempt(std::slice::from_ref(leaf), n, &()).is_ok()
            && charge::attempt(std::slice::from_ref(root), n, &()).is_err()
        {
            charge::uncharge(std::slice::from_ref(leaf), n);
        }
    });
}

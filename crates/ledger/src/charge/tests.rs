//! Tests of the charge algorithm in one or two groups. The test itself writes the ledger words of
//! the other processes.

use super::*;
use crate::atomic::AtomicU64;
use std::cell::{Cell, RefCell};

/// An action that the test runs each time before the ledger's words are read. Its first argument
/// counts the readings.
type Script<'a> = Box<dyn FnMut(u32, &[AtomicU64]) + 'a>;

/// A ledger whose words the test writes. Slot 0 belongs to the process under test.
struct Plain<'a> {
    words: Vec<AtomicU64>,
    /// The idle bytes beside each word.
    idle: Vec<AtomicU64>,
    high_water: AtomicU64,
    max: u64,
    trusted: bool,
    looks: Cell<u32>,
    script: RefCell<Script<'a>>,
    /// Number of begun changes of the process's word.
    begun: Cell<u32>,
    /// Number of ended changes of the process's word.
    ended: Cell<u32>,
    /// Sum of all changes of the process's word, in units.
    kept: Cell<i64>,
    noted: Cell<Option<(u64, u64)>>,
    records: bool,
    /// The usage before the last recorded grant, and its rise.
    recorded: Cell<Option<(Option<u64>, u64)>>,
}

impl Plain<'_> {
    fn new(max: u64, words: &[u64]) -> Self {
        Self {
            words: words.iter().copied().map(AtomicU64::new).collect(),
            idle: words.iter().map(|_| AtomicU64::new(0)).collect(),
            high_water: AtomicU64::new(words.len() as u64),
            max,
            trusted: true,
            looks: Cell::new(0),
            script: RefCell::new(Box::new(|_, _| {})),
            begun: Cell::new(0),
            ended: Cell::new(0),
            kept: Cell::new(0),
            noted: Cell::new(None),
            records: false,
            recorded: Cell::new(None),
        }
    }

    /// Makes the ledger record its usage. `idle` are the idle units of each slot.
    fn recording(mut self, idle: &[u64]) -> Self {
        self.idle = idle.iter().map(|n| AtomicU64::new(n * UNIT)).collect();
        self.records = true;
        self
    }

    fn charge(&self, slot: usize) -> Charged<'_, AtomicU64> {
        let (word, idle) = (&self.words[slot], &self.idle[slot]);
        Charged { word, idle }
    }

    fn own_word(&self) -> u64 {
        self.words[0].load(Ordering::Relaxed)
    }

    fn end(&self, n: i64) {
        self.ended.set(self.ended.get() + 1);
        self.kept.set(self.kept.get() + n);
    }

    fn is_balanced(&self) -> bool {
        self.begun == self.ended
    }
}

impl<'a> Plain<'a> {
    fn before_each_look(mut self, script: impl FnMut(u32, &[AtomicU64]) + 'a) -> Self {
        self.script = RefCell::new(Box::new(script));
        self
    }
}

impl Rung for Plain<'_> {
    type Word = AtomicU64;

    fn own(&self) -> Charged<'_, AtomicU64> {
        self.charge(0)
    }

    fn high_water(&self) -> &AtomicU64 {
        &self.high_water
    }

    fn charges<'a>(&'a self, high_water: u64) -> impl Iterator<Item = Charged<'a, AtomicU64>>
    where
        Self::Word: 'a,
    {
        self.looks.set(self.looks.get() + 1);
        self.script.borrow_mut()(self.looks.get(), &self.words);
        (0..high_water as usize).map(|slot| self.charge(slot))
    }

    fn max(&self) -> u64 {
        self.max
    }

    fn records(&self) -> bool {
        self.records
    }

    fn note(&self, total: u64, own: u64, _: &AtomicU64) {
        self.noted.set(Some((total, own)));
    }

    fn record(&self, _: Tick, before: Option<u64>, rise: u64) {
        self.recorded.set(Some((before, rise)));
    }

    fn begin(&self, _: &AtomicU64, _: Option<Tick>) -> bool {
        self.begun.set(self.begun.get() + 1);
        self.trusted
    }

    fn withdrawn(&self) {
        self.end(0);
    }

    fn added(&self, n: u64) {
        self.end(n as i64);
    }

    fn taken(&self, n: u64) {
        self.end(-(n as i64));
    }
}

/// A test's [`Surroundings`], which counts the calls. A script answers each call; without a script,
/// every answer is false.
#[derive(Default)]
struct Around<'a> {
    reclaim: Option<Box<dyn FnMut(u32) -> bool + 'a>>,
    reap: Option<Box<dyn FnMut(u32) -> Reaped + 'a>>,
    ask: Option<Box<dyn FnMut(u32) -> bool + 'a>>,
    back_off: Option<Box<dyn FnMut(u32) -> bool + 'a>>,
    drain: Option<Box<dyn FnMut(u32) -> bool + 'a>>,
    reclaims: u32,
    reaps: u32,
    asks: u32,
    back_offs: u32,
    drains: u32,
}

fn answer<T: Default>(count: &mut u32, script: &mut Option<Box<dyn FnMut(u32) -> T + '_>>) -> T {
    *count += 1;
    assert!(*count < 1_000, "asked without end");
    script
        .as_mut()
        .map_or_else(T::default, |script| script(*count))
}

impl Surroundings<Plain<'_>> for Around<'_> {
    fn reclaim(&mut self) -> bool {
        answer(&mut self.reclaims, &mut self.reclaim)
    }

    fn reap(&mut self, _: &Plain<'_>) -> Reaped {
        answer(&mut self.reaps, &mut self.reap)
    }

    fn ask_others(&mut self, _: &Plain<'_>, _: u64, _: u64) -> bool {
        answer(&mut self.asks, &mut self.ask)
    }

    fn back_off(&mut self) -> bool {
        answer(&mut self.back_offs, &mut self.back_off)
    }

    fn wait_for_drain(&mut self) -> bool {
        answer(&mut self.drains, &mut self.drain)
    }
}

fn freed() -> Reaped {
    Reaped {
        freed: true,
        pending: 0,
    }
}

fn pending(pending: u64) -> Reaped {
    Reaped {
        freed: false,
        pending,
    }
}

const fn word(charged: u64, undecided: u64) -> u64 {
    undecided << 32 | charged
}

#[test]
fn a_word_has_two_halves() {
    let both = word(10, 7);
    assert_eq!((charged(both), undecided(both), granted(both)), (10, 7, 3));
    assert_eq!(published(10), word(10, 10));
    assert_eq!(granted(word(3, 5)), 0, "damaged");
}

#[test]
fn an_exact_fit_is_granted_and_a_failed_attempt_leaves_no_trace() {
    let level = [Plain::new(10, &[2, 3])];
    assert_eq!(attempt(&level, 5, &()), Ok(()));
    assert_eq!(level[0].own_word(), 7);
    assert_eq!(
        level[0].noted.get(),
        Some((10, 7)),
        "the peaks of all processes and of this process are recorded"
    );
    assert_eq!(attempt(&level, 1, &()), Err(0));
    assert_eq!(level[0].own_word(), 7);
    assert_eq!(level[0].kept.get(), 5);
    assert!(level[0].is_balanced());
}

#[test]
fn undecided_requests_of_others_stand_in_the_way() {
    let level = [Plain::new(10, &[0, word(4, 4)])];
    assert_eq!(attempt(&level, 7, &()), Err(0));
    assert_eq!(attempt(&level, 6, &()), Ok(()));
}

/// A test's idle counter. Each of its changes records the words of the process under test.
struct Watch<'a>(&'a [Plain<'static>], RefCell<Vec<(&'static str, Vec<u64>)>>);

impl<'a> Watch<'a> {
    fn over(levels: &'a [Plain<'static>]) -> Self {
        Self(levels, RefCell::default())
    }

    fn note(&self, what: &'static str) {
        let words = self.0.iter().map(Plain::own_word).collect();
        self.1.borrow_mut().push((what, words));
    }

    fn told(self) -> Vec<(&'static str, Vec<u64>)> {
        self.1.into_inner()
    }
}

impl Idle for Watch<'_> {
    fn add(&self) {
        self.note("add");
    }

    fn remove(&self) {
        self.note("remove");
    }
}

#[test]
fn the_idle_counter_changes_while_all_levels_are_undecided() {
    let levels = [Plain::new(10, &[2]), Plain::new(9, &[1, 3])];
    let idle = Watch::over(&levels);
    assert_eq!(attempt(&levels, 6, &idle), Err(1));
    assert_eq!(idle.told(), [], "a refused request is not counted");
    let idle = Watch::over(&levels);
    assert_eq!(attempt(&levels, 5, &idle), Ok(()));
    assert_eq!(idle.told(), [("add", vec![word(7, 5), word(6, 5)])]);
    let idle = Watch::over(&levels);
    uncharge_idle(&levels, 5, &idle);
    assert_eq!(idle.told(), [("remove", vec![word(7, 5), word(6, 5)])]);
    assert_eq!((levels[0].own_word(), levels[1].own_word()), (2, 1));
    assert!(
        levels
            .iter()
            .all(|level| level.is_balanced() && level.kept.get() == 0)
    );
    let mut around = Around::default();
    let idle = Watch::over(&levels);
    assert!(contend(&levels, 8, 0, &mut around, &idle).is_err());
    assert_eq!(contend(&levels, 5, 0, &mut around, &idle), Ok(()));
    assert_eq!(idle.told(), [("add", vec![word(7, 5), word(6, 5)])]);
}

#[test]
fn undecided_requests_are_not_part_of_a_peak() {
    let level = [Plain::new(20, &[word(5, 2), word(6, 4)])];
    assert_eq!(attempt(&level, 3, &()), Ok(()));
    assert_eq!(level[0].noted.get(), Some((3 + 3 + 2, 3 + 3)));
}

/// Charges 5 units beside others' words and idle units, and returns what was recorded.
fn recorded(words: &[u64], idle: &[u64]) -> (Option<u64>, u64) {
    let level = [Plain::new(100, words).recording(idle)];
    assert_eq!(attempt(&level, 5, &()), Ok(()));
    assert_eq!(
        level[0].looks.get(),
        1,
        "one look at the words of all members"
    );
    level[0].recorded.get().expect("recorded")
}

#[test]
fn a_grant_records_the_usage_that_its_look_has_seen() {
    let before = 10 - 4 + 20 - 3;
    assert_eq!(recorded(&[10, 20, 0], &[4, 3, 0]), (Some(before), 5));
    let undecided = 7 | 2 << 32;
    assert_eq!(recorded(&[10, undecided], &[0, 0]), (None, 5), "unknown");
    assert_eq!(recorded(&[10, 20], &[0, 31]), (None, 5), "impossible");
    assert_eq!(recorded(&[10, 20], &[u64::MAX / UNIT, 0]), (None, 5));
}

#[test]
fn the_usage_beside_an_undecided_request_or_impossible_idle_bytes_is_that_of_the_others() {
    let in_use = |words: &[u64], idle: &[u64]| {
        let level = Plain::new(100, words).recording(idle);
        in_use(|| level.charges(words.len() as u64), || {})
    };
    assert_eq!(in_use(&[10, 20, 0], &[4, 3, 0]), 6 + 17);
    assert_eq!(in_use(&[10, 7 | 2 << 32], &[1, 1]), 9 + 4);
    assert_eq!(in_use(&[10, 20], &[0, 31]), 10);
    assert_eq!(in_use(&[10, 20], &[u64::MAX / UNIT, 0]), 20);
}

#[test]
fn a_word_and_its_figure_are_read_between_requests() {
    let own = AtomicU64::new(word(7, 3));
    let naps = Cell::new(0);
    let decides = || {
        naps.set(naps.get() + 1);
        if naps.get() == 5 {
            own.store(9, Ordering::Relaxed);
        }
        naps.get() < 100
    };
    assert_eq!(settled(&own, || 4, decides), (9, 4));
    assert_eq!(naps.get(), 6, "the function needs two equal readings");
    own.store(word(7, 3), Ordering::Relaxed);
    let mut left = 3;
    let stopped = || {
        left -= 1;
        left > 0
    };
    assert_eq!(
        settled(&own, || 4, stopped),
        (word(7, 3), 4),
        "the function returns the last values when its time is over"
    );
    let figure = Cell::new(0);
    let moves = || {
        figure.set((figure.get() + 1).min(4));
        figure.get()
    };
    own.store(9, Ordering::Relaxed);
    assert_eq!(
        settled(&own, moves, || true),
        (9, 4),
        "the function returns when the figure no longer changes"
    );
}

#[test]
fn slots_above_high_water_do_not_count() {
    let level = [Plain::new(10, &[0, 0, 9])];
    level[0].high_water.store(2, Ordering::Relaxed);
    assert_eq!(attempt(&level, 10, &()), Ok(()));
}

#[test]
fn a_level_that_refuses_undoes_those_below() {
    let levels = [Plain::new(10, &[0]), Plain::new(10, &[0, 8])];
    assert_eq!(attempt(&levels, 3, &()), Err(1));
    for level in &levels {
        assert_eq!((level.own_word(), level.kept.get()), (0, 0));
        assert!(level.is_balanced() && level.noted.get().is_none());
    }
    assert_eq!(attempt(&levels, 2, &()), Ok(()));
    assert_eq!((levels[0].own_word(), levels[1].own_word()), (2, 2));
}

#[test]
fn a_process_with_a_changed_word_is_granted_no_request() {
    let mut level = [Plain::new(10, &[0])];
    level[0].trusted = false;
    assert_eq!(attempt(&level, 1, &()), Err(0));
    assert_eq!(level[0].own_word(), 0);
    assert!(level[0].is_balanced());
}

#[test]
fn a_word_is_bounded() {
    let level = [Plain::new(u64::MAX, &[WORD_MAX - 2])];
    assert_eq!(attempt(&level, 3, &()), Err(0));
    add_unchecked(&level, 3);
    assert_eq!(
        level[0].own_word(),
        WORD_MAX - 2,
        "units that would overflow the word are not charged"
    );
    assert_eq!(attempt(&level, 1, &()), Ok(()));
    add_unchecked(&level, 1);
    assert_eq!(level[0].own_word(), WORD_MAX);
    assert_eq!(level[0].kept.get(), 2);
    assert!(level[0].is_balanced());
    // The process's word counts as many units as it can. The request is therefore refused although
    // the group has room.
    let mut around = Around::default();
    assert_eq!(
        contend(&level, 1, 0, &mut around, &()),
        Err(Refusal {
            level: 0,
            charged: WORD_MAX,
            pending: 0
        })
    );
}

#[test]
fn unchecked_units_are_charged_and_given_back_whatever_the_limit() {
    let levels = [Plain::new(1, &[0]), Plain::new(1, &[0])];
    add_unchecked(&levels, 5);
    assert_eq!((levels[0].own_word(), levels[1].own_word()), (5, 5));
    uncharge(&levels, 2);
    assert_eq!((levels[0].own_word(), levels[1].kept.get()), (3, 3));
    uncharge(&levels, 4);
    assert_eq!((levels[0].own_word(), levels[1].own_word()), (0, 0));
    assert_eq!(levels[0].kept.get(), 0, "only charged units are uncharged");
    assert!(levels.iter().all(Plain::is_balanced));
    let undecided = AtomicU64::new(word(5, 3));
    assert_eq!(
        take_out(&undecided, 4),
        2,
        "undecided units are not given back"
    );
    assert_eq!(undecided.load(Ordering::Relaxed), word(3, 3));
}

#[test]
fn a_look_sums_the_words_and_detects_movement() {
    let level = Plain::new(0, &[word(5, 2), word(7, 1)]);
    let before = look(&level);
    assert_eq!(
        (before.charged, before.undecided, before.granted()),
        (12, 3, 9)
    );
    assert_eq!(before, look(&level));
    // Every distribution of eight units over four slots is tried. The sum is always the same, so
    // only the hash can differ.
    let mut hashes = Vec::new();
    for first in 0..=8 {
        for second in 0..=8 - first {
            for third in 0..=8 - first - second {
                let rest = 8 - first - second - third;
                hashes.push(look(&Plain::new(0, &[first, second, third, rest])).hash);
            }
        }
    }
    let ways = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), ways);
}

#[test]
fn a_verdict_is_exact_to_one_unit() {
    let verdict = |own, other, n| {
        let level = Plain::new(10, &[own, other]);
        verdict(&level, level.max, &look(&level), n)
    };
    assert_eq!(verdict(0, 7, 3), Verdict::Fits);
    assert_eq!(verdict(0, 7, 4), Verdict::Over);
    assert_eq!(verdict(0, word(7, 1), 4), Verdict::Contended);
    assert_eq!(verdict(0, word(7, 1), 3), Verdict::Fits);
    assert_eq!(verdict(0, word(7, 1), 5), Verdict::Over);
    assert_eq!(verdict(1, 6, 3), Verdict::Fits);
}

#[test]
fn a_refusal_comes_after_every_remedy_was_tried_once() {
    let level = [Plain::new(10, &[2, 7])];
    let mut around = Around::default();
    assert_eq!(
        contend(&level, 2, 0, &mut around, &()),
        Err(Refusal {
            level: 0,
            charged: 9,
            pending: 0
        })
    );
    assert_eq!((around.reclaims, around.reaps, around.asks), (1, 1, 1));
    assert_eq!((around.back_offs, around.drains), (0, 0));
    assert_eq!(level[0].own_word(), 2);
}

#[test]
fn a_request_that_fits_by_now_is_granted_without_any_remedy() {
    let level = [Plain::new(10, &[2, 7])];
    let mut around = Around::default();
    assert_eq!(contend(&level, 1, 0, &mut around, &()), Ok(()));
    assert_eq!(level[0].own_word(), 3);
    assert_eq!((around.reclaims, around.reaps, around.back_offs), (0, 0, 0));
    assert_eq!(
        contend::<Plain<'_>>(&[], 1, 0, &mut around, &()),
        Ok(()),
        "no limit"
    );
}

#[test]
fn own_idle_memory_is_reclaimed_a_bounded_number_of_times() {
    let level = [Plain::new(10, &[10])];
    let mut around = Around {
        reclaim: Some(Box::new(|_| take_out(level[0].own().word, 1) == 1)),
        ..Around::default()
    };
    assert_eq!(contend(&level, 3, 0, &mut around, &()), Ok(()));
    assert_eq!((around.reclaims, around.reaps), (3, 0));
    let mut around = Around {
        reclaim: Some(Box::new(|_| true)),
        ..Around::default()
    };
    assert!(
        contend(&level, 1, 0, &mut around, &()).is_err(),
        "no memory came back"
    );
    assert_eq!(around.reclaims, RECLAIMS);
}

#[test]
fn memory_of_the_dead_makes_room() {
    let level = [Plain::new(10, &[0, 10])];
    let mut around = Around {
        reap: Some(Box::new(|_| {
            level[0].words[1].store(0, Ordering::Relaxed);
            freed()
        })),
        ..Around::default()
    };
    assert_eq!(contend(&level, 10, 0, &mut around, &()), Ok(()));
    assert_eq!((around.reaps, around.asks), (1, 0));
}

#[test]
fn pending_memory_is_waited_for_if_it_makes_room() {
    let level = [Plain::new(10, &[0, 10])];
    let request = |units, draining| {
        let mut around = Around {
            reap: Some(Box::new(move |_| pending(draining))),
            ..Around::default()
        };
        let refused = contend(&level, units, 0, &mut around, &());
        assert_eq!(
            refused,
            Err(Refusal {
                level: 0,
                charged: 10,
                pending: draining,
            })
        );
        (around.drains, around.asks)
    };
    assert_eq!(request(4, 4), (1, 0), "just enough");
    assert_eq!(request(4, 3), (0, 1), "not enough");
    assert_eq!(
        request(4, 20),
        (1, 0),
        "more units are pending than are charged"
    );
    let mut around = Around {
        reap: Some(Box::new(|_| pending(4))),
        drain: Some(Box::new(|waits| {
            if waits == 3 {
                level[0].words[1].store(6, Ordering::Relaxed);
            }
            true
        })),
        ..Around::default()
    };
    assert_eq!(contend(&level, 4, 0, &mut around, &()), Ok(()));
    assert_eq!(around.drains, 3);
}

#[test]
fn others_are_asked_as_long_as_they_give_memory_back() {
    let level = [Plain::new(10, &[0, 10])];
    let mut around = Around {
        ask: Some(Box::new(|_| take_out(&level[0].words[1], 2) == 2)),
        ..Around::default()
    };
    assert_eq!(contend(&level, 5, 0, &mut around, &()), Ok(()));
    assert_eq!(around.asks, 3);
}

#[test]
fn undecided_requests_of_others_are_waited_for() {
    let level = [Plain::new(10, &[0, word(6, 6)])];
    let mut around = Around {
        back_off: Some(Box::new(|times| {
            if times == 3 {
                level[0].words[1].store(0, Ordering::Relaxed);
            }
            true
        })),
        ..Around::default()
    };
    assert_eq!(contend(&level, 5, 0, &mut around, &()), Ok(()));
    assert_eq!((around.back_offs, around.reaps, around.reclaims), (3, 0, 0));
}

#[test]
fn a_dead_requester_is_found_while_its_request_stands_in_the_way() {
    let level = [Plain::new(10, &[0, word(6, 6)])];
    let mut around = Around {
        back_off: Some(Box::new(|_| true)),
        reap: Some(Box::new(|_| {
            level[0].words[1].store(0, Ordering::Relaxed);
            freed()
        })),
        ..Around::default()
    };
    assert_eq!(contend(&level, 5, 0, &mut around, &()), Ok(()));
    assert_eq!((around.reaps, around.back_offs), (1, CONTENDED - 1));
}

#[test]
fn dead_slots_are_cleaned_once_more_when_the_time_is_over() {
    let level = [Plain::new(10, &[1, word(9, 6)])];
    let mut around = Around::default();
    assert_eq!(
        contend(&level, 5, 0, &mut around, &()),
        Err(Refusal {
            level: 0,
            charged: 4,
            pending: 0
        }),
        "the refusal reports granted units only"
    );
    assert_eq!((around.back_offs, around.reaps), (1, 1));
    let mut around = Around {
        reap: Some(Box::new(|_| {
            level[0].words[1].store(3, Ordering::Relaxed);
            freed()
        })),
        ..Around::default()
    };
    assert_eq!(contend(&level, 5, 0, &mut around, &()), Ok(()));
    assert_eq!((around.back_offs, around.reaps), (1, 1));
}

#[test]
fn the_level_with_the_worst_verdict_refuses() {
    let named = |first: &[u64], second: &[u64], third: &[u64]| {
        let levels = [first, second, third].map(|words| Plain::new(10, words));
        contend(&levels, 5, 0, &mut Around::default(), &()).map_err(|refusal| refusal.level)
    };
    let (free, contended, full) = ([0, 0], [0, word(9, 9)], [0, 9]);
    assert_eq!(named(&free, &free, &free), Ok(()));
    assert_eq!(
        named(&free, &full, &full),
        Err(1),
        "the refusal names the first full group"
    );
    assert_eq!(
        named(&contended, &free, &full),
        Err(2),
        "the refusal names the full group, not a group with undecided requests"
    );
    assert_eq!(named(&full, &contended, &free), Err(0));
    assert_eq!(
        named(&free, &contended, &contended),
        Err(1),
        "the refusal names the first group with undecided requests"
    );
}

#[test]
fn memory_that_moves_during_a_look_causes_no_refusal() {
    // While the memory moves, each reading of the words counts it twice and gets another sum.
    for moves in 2..20 {
        let level = [Plain::new(10, &[0, 9, 0]).before_each_look(|look, words| {
            let (one, other) = if look < moves {
                (9, u64::from(look))
            } else {
                (5, 0)
            };
            words[1].store(one, Ordering::Relaxed);
            words[2].store(other, Ordering::Relaxed);
        })];
        let mut around = Around {
            back_off: Some(Box::new(|_| true)),
            ..Around::default()
        };
        assert_eq!(contend(&level, 5, 0, &mut around, &()), Ok(()), "{moves}");
        assert_eq!(around.asks, 0);
    }
}

#[test]
fn memory_that_moves_forever_is_looked_at_a_bounded_number_of_times() {
    let level = [Plain::new(10, &[0, 9, 0]).before_each_look(|look, words| {
        words[2].store(u64::from(look), Ordering::Relaxed);
    })];
    let mut around = Around::default();
    assert!(contend(&level, 5, 0, &mut around, &()).is_err());
    assert!(level[0].looks.get() > LOOKS);
}

#[test]
fn room_that_comes_and_goes_is_waited_for_as_long_as_undecided_requests_are() {
    // In each round, the group is full at the first reading of the words and has room at the
    // second.
    let level = [Plain::new(10, &[0, 9]).before_each_look(|look, words| {
        words[1].store(if look % 2 == 1 { 9 } else { 0 }, Ordering::Relaxed);
    })];
    let mut around = Around {
        back_off: Some(Box::new(|times| times < 100)),
        ..Around::default()
    };
    assert!(contend(&level, 5, 0, &mut around, &()).is_err());
    assert_eq!(around.back_offs, 100);
    assert_eq!(level[0].own_word(), 0);
}

//! Repeated events: several equal events of a process share an entry of the trail, which counts
//! them. It has the figures of the last one.
//!
//! A program that tries a refused request again without pause would otherwise replace all other
//! events of the trail within seconds. Each process remembers the entries that it has written last,
//! so that it searches no entry of others.

use super::super::atomic::{AtomicU64, Ordering};
use super::super::layout::{self, TRAIL, TrailEntry, load_bytes};
use super::super::{EventKind, Ledger};
use super::{ATTEMPTS, Key};

/// The longest pause between two equal events that share an entry, in milliseconds.
const PAUSE_MS: u64 = 10_000;
/// The longest time between the first and the last event that share an entry, in milliseconds.
const SPAN_MS: u64 = 600_000;
/// Number of entries that a process remembers.
const RECENT: usize = 16;

/// The entries of a ledger's trail that this process has written last: numbers of events plus 1.
/// Stays in the memory of this process.
#[derive(Default)]
pub(crate) struct Recent([AtomicU64; RECENT]);

impl Recent {
    fn add(&self, number: u64) {
        let place = &self.0[number as usize % RECENT];
        place.store(number.wrapping_add(1), Ordering::Relaxed);
    }
}

/// The later events that share an entry with their first.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Repeats {
    /// Number of later events.
    pub count: u64,
    /// Milliseconds from the first event to the last one; the times of both count in whole
    /// milliseconds.
    pub span_ms: u64,
}

impl Repeats {
    /// Returns the time of the last event, from that of the first, in microseconds: the end of its
    /// millisecond, which is exact in milliseconds and not before the event.
    pub fn last_us(self, first_us: u64) -> u64 {
        match self.count {
            0 => first_us,
            _ => (first_us / 1_000 + self.span_ms)
                .saturating_mul(1_000)
                .saturating_add(999),
        }
    }

    const COUNT: u64 = (1 << 28) - 1;
    const SPAN_SHIFT: u32 = 28;
    const SPAN: u64 = (1 << 20) - 1;
    const LAP_SHIFT: u32 = 48;

    /// Returns the word for the entry of this event. The word names the lap of the trail, so that
    /// a process that was stopped meanwhile does not count in the entry of another event.
    pub fn word(self, number: u64) -> u64 {
        lap(number) << Self::LAP_SHIFT
            | self.span_ms.min(Self::SPAN) << Self::SPAN_SHIFT
            | self.count.min(Self::COUNT)
    }

    /// Reads the word of this event's entry; `None` if the word is of another event or impossible.
    pub fn of(word: u64, number: u64) -> Option<Self> {
        let repeats = Self {
            count: word & Self::COUNT,
            span_ms: word >> Self::SPAN_SHIFT & Self::SPAN,
        };
        let is_possible = word >> Self::LAP_SHIFT == lap(number) && repeats.span_ms <= SPAN_MS;
        is_possible.then_some(repeats)
    }
}

/// Returns how often the trail was full before this event, in 16 bits.
fn lap(number: u64) -> u64 {
    (number / TRAIL as u64) & 0xffff
}

impl EventKind {
    /// Returns whether a process can cause such events one after the other, as fast as it runs.
    pub(super) const fn repeats(self) -> bool {
        match self {
            Self::Refusal | Self::Recovered | Self::Wait | Self::Granted | Self::High => true,
            Self::Reap | Self::Kill | Self::Limits | Self::Oom => false,
            // Each has figures of its own, and a process is asked five times a second at most.
            Self::Asked | Self::Given => false,
            // The driver needs a third of a second for each.
            Self::Suspend | Self::Resume | Self::Lost => false,
        }
    }
}

impl Ledger {
    /// Counts an event of this process in the entry of an equal one that this process has added
    /// shortly before, and returns that entry.
    pub(super) fn add_repeat(
        &self,
        kind: EventKind,
        time_us: u64,
        key: &Key<'_>,
    ) -> Option<&TrailEntry> {
        let mut recent = self.recent.0.iter().filter(|_| kind.repeats());
        recent.find_map(|recent| {
            let next = recent.load(Ordering::Relaxed);
            let number = next.checked_sub(1)?;
            let entry = self.trail_entry(number);
            let is_it = entry.stamp.load(Ordering::Acquire) == next
                && is_equal(entry, key)
                && extend(entry, number, time_us);
            is_it.then_some(entry)
        })
    }

    /// Remembers an event that later equal ones can share.
    pub(super) fn remember(&self, kind: EventKind, number: u64) {
        if kind.repeats() {
            self.recent.add(number);
        }
    }
}

fn is_equal(entry: &TrailEntry, key: &Key<'_>) -> bool {
    let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
    is(&entry.what, key.what)
        && is(&entry.cause, key.cause)
        && is(&entry.pid, u64::from(key.process.pid))
        && is(&entry.pid_ns, key.process.pid_ns)
        && load_bytes::<{ 8 * layout::FUNCTION_WORDS }>(&entry.function) == key.function
        && load_bytes::<{ 8 * layout::TRAIL_GROUP_WORDS }>(&entry.group) == key.group
}

/// Counts an event in the entry of an earlier one. Returns false if that one is too old.
fn extend(entry: &TrailEntry, number: u64, time_us: u64) -> bool {
    let first_us = entry.time.load(Ordering::Relaxed);
    if time_us < first_us {
        return false;
    }
    let since_ms = time_us / 1_000 - first_us / 1_000;
    let mut seen = entry.repeats.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        let Some(before) = Repeats::of(seen, number) else {
            return false;
        };
        if since_ms > SPAN_MS || since_ms > before.span_ms + PAUSE_MS {
            return false;
        }
        let after = Repeats {
            count: before.count + 1,
            span_ms: before.span_ms.max(since_ms),
        };
        let (order, wanted) = (Ordering::Relaxed, after.word(number));
        match entry.repeats.compare_exchange(seen, wanted, order, order) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{happening, numbers};
    use super::super::{Cause, Details, TrailEvent};
    use super::*;
    use crate::Happening;
    use crate::scratch::Scratch;
    use gpulimit_base::identity::Identity;

    fn refusal(bytes: u64) -> Happening {
        Happening {
            kind: EventKind::Refusal,
            ..happening(bytes)
        }
    }

    fn counts(events: &[TrailEvent]) -> Vec<u64> {
        events.iter().map(|event| event.repeats).collect()
    }

    #[test]
    fn a_loop_of_refusals_leaves_one_entry_and_keeps_the_events_of_others() {
        let (lasting, below) = (Scratch::with_history(), Scratch::new());
        lasting.record(&happening(1));
        let details = Details {
            group: "run-1-2",
            function: "cuMemAlloc",
            ..Details::default()
        };
        let all = 3 * TRAIL as u64;
        for bytes in 0..all {
            below.record_in(Some(&lasting), &refusal(bytes), &details);
        }
        let events = lasting.trail(0);
        assert_eq!(numbers(&events), [0, 1], "the other event is still there");
        let looped = &events[1];
        assert_eq!(looped.repeats, all - 1);
        let figures = (looped.event.number, looped.event.what.bytes);
        assert_eq!(
            figures,
            (0, all - 1),
            "the place of the first, the figures of the last"
        );
        let ring = below.events(0);
        let last = ring.last().expect("the ring has each event");
        assert_eq!(last.number, all - 1);
        let (first, until) = (looped.event.time_us, looped.last_us);
        assert!(first <= last.time_us && last.time_us <= until);
        assert!(until < last.time_us + 1_000, "rounded up");
        assert_eq!(until / 1_000, last.time_us / 1_000, "the same millisecond");
    }

    #[test]
    fn events_that_differ_have_entries_of_their_own() {
        let scratch = Scratch::with_history();
        let details = |group, function| Details {
            group,
            function,
            ..Details::default()
        };
        let usual = details("a", "cuMemAlloc");
        let host = Details {
            cause: Some(Cause::Host),
            ..usual
        };
        let device = Some(scratch.device);
        let other = Identity {
            pid: 78,
            ..happening(0).process
        };
        let kind = |kind| Happening {
            kind,
            ..happening(1)
        };
        let different = [
            (refusal(1), usual),
            (refusal(1), details("b", "cuMemAlloc")),
            (refusal(1), details("a", "cuMemCreate")),
            (
                Happening {
                    device,
                    ..refusal(1)
                },
                usual,
            ),
            (
                Happening {
                    process: other,
                    ..refusal(1)
                },
                usual,
            ),
            (kind(EventKind::Wait), usual),
            (refusal(1), host),
        ];
        for _ in 0..3 {
            for (happening, details) in &different {
                scratch.record_in(Some(&scratch), happening, details);
            }
        }
        assert_eq!(counts(&scratch.trail(0)), [2; 7]);
        for single in [
            EventKind::Kill,
            EventKind::Oom,
            EventKind::Reap,
            EventKind::Limits,
        ] {
            scratch.record(&kind(single));
            scratch.record(&kind(single));
        }
        assert_eq!(counts(&scratch.trail(7)), [0; 8]);
    }

    #[test]
    fn a_pause_and_a_long_loop_begin_new_entries() {
        let scratch = Scratch::with_history();
        let age = |number: u64, ms: u64, span_ms: u64| {
            let entry = scratch.trail_entry(number);
            let now = crate::events::now_us();
            entry.time.store(now - ms * 1_000, Ordering::Relaxed);
            let repeats = Repeats { count: 5, span_ms };
            let word = repeats.word(number);
            entry.repeats.store(word, Ordering::Relaxed);
        };
        scratch.record(&refusal(1));
        age(0, PAUSE_MS / 2, 0);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [6]);
        age(0, PAUSE_MS + 1, 0);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [5, 0], "after a pause");
        age(1, SPAN_MS + 1, SPAN_MS);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [5, 5, 0], "after ten minutes");
        // The wall clock was set back.
        let later = crate::events::now_us() + 5_000_000;
        let entry = scratch.trail_entry(2);
        entry.time.store(later, Ordering::Relaxed);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [5, 5, 0, 0]);
    }

    #[test]
    fn a_replaced_entry_counts_no_event_of_its_former_writer() {
        let scratch = Scratch::with_history();
        scratch.record(&refusal(1));
        // Another process fills the trail.
        let other = Ledger::open(scratch.path()).expect("opened");
        for _ in 0..TRAIL {
            other.record(&happening(2));
        }
        scratch.record(&refusal(3));
        let events = scratch.trail(0);
        assert!(events.iter().all(|event| event.repeats == 0));
        assert_eq!(events.last().map(|last| last.event.what.bytes), Some(3));
        // Its former writer looked at the entry before, and continues now.
        let (entry, now) = (scratch.trail_entry(0), crate::events::now_us());
        assert!(!extend(entry, 0, now));
    }

    #[test]
    fn words_that_another_build_or_a_forger_left_count_nothing() {
        let scratch = Scratch::with_history();
        scratch.record(&refusal(1));
        let entry = scratch.trail_entry(0);
        let long = Repeats {
            count: 9,
            span_ms: SPAN_MS + 1,
        };
        let some = Repeats {
            count: 9,
            span_ms: 1,
        };
        let kill = EventKind::Kill as u64;
        for (word, kind) in [
            (u64::MAX, None),
            (1 << 48 | 9, None),
            (long.word(0), None),
            (some.word(0), Some(kill)),
        ] {
            let what = entry.what.load(Ordering::Relaxed);
            entry.repeats.store(word, Ordering::Relaxed);
            entry.what.store(kind.unwrap_or(what), Ordering::Relaxed);
            let events = scratch.trail(0);
            assert_eq!(counts(&events), [0]);
            assert_eq!(events[0].last_us, events[0].event.time_us);
            entry.what.store(what, Ordering::Relaxed);
        }
        // The count stays at its largest value.
        let most = Repeats {
            count: u64::MAX,
            span_ms: 0,
        };
        entry.repeats.store(most.word(0), Ordering::Relaxed);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [Repeats::COUNT]);
    }

    #[test]
    fn threads_lose_no_event() {
        let scratch = Scratch::with_history();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| scratch.record(&refusal(1))));
            }
        });
        let events = scratch.trail(0);
        assert!(events.len() < 1_000, "{} entries", events.len());
        let all = events.len() as u64 + counts(&events).iter().sum::<u64>();
        assert_eq!(all, 4_000);
    }
}

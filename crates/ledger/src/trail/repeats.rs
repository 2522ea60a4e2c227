//! Repeated events: several equal events of a process share an entry of the trail. The entry has
//! their number, and the figures of the last one.
//!
//! A program that tries a refused request again without pause would otherwise replace all other
//! events of the trail within seconds. Only the process that repeats an event counts: it remembers
//! the entries that it has written last, so that it searches no entry of others.
//!
//! Accepted: the entry may lack the last repeat of a process that is killed meanwhile. A process
//! that stops after its look at an entry, and goes on once the trail has replaced that entry,
//! leaves its figures and one repeat at another event. [`Ledger::event_count`] is exact.

use super::super::atomic::{AtomicU64, Ordering};
use super::super::layout::{self, TrailEntry, load_bytes};
use super::super::{Event, EventKind, Ledger};
use super::Key;

/// The longest pause between two equal events that share an entry, in microseconds.
const PAUSE_US: u64 = 10_000_000;
/// The longest time between the first and the last event that share an entry, in microseconds.
const SPAN_US: u64 = 600_000_000;
/// The largest number of repeats that is read. Any member can write any number.
const MOST: u64 = u32::MAX as u64;
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

impl EventKind {
    /// Returns whether a process can cause such events one after the other, as fast as it runs.
    pub(super) const fn repeats(self) -> bool {
        match self {
            Self::Refusal | Self::Recovered | Self::Wait | Self::Granted | Self::High => true,
            Self::Reap | Self::Kill | Self::Limits | Self::Oom | Self::Outside => false,
            // Each has figures of its own, and a process is asked five times a second at most.
            Self::Asked | Self::Given => false,
            // The driver needs a third of a second for each.
            Self::Suspend | Self::Resume | Self::Lost => false,
        }
    }
}

impl Ledger {
    /// Returns the entry of an equal event that this process has added shortly before.
    pub(super) fn repeated(
        &self,
        kind: EventKind,
        time_us: u64,
        key: &Key<'_>,
    ) -> Option<&TrailEntry> {
        let mut recent = self.recent.0.iter().filter(|_| kind.repeats());
        recent.find_map(|recent| {
            let next = recent.load(Ordering::Relaxed);
            let entry = self.trail_entry(next.checked_sub(1)?);
            let is_it = entry.event.stamp.load(Ordering::Acquire) == next
                && is_equal(entry, key)
                && is_fresh(entry, time_us);
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
    is(&entry.event.what, key.what)
        && is(&entry.cause, key.cause)
        && is(&entry.event.pid, u64::from(key.process.pid))
        && is(&entry.event.pid_ns, key.process.pid_ns)
        && load_bytes::<{ 8 * layout::FUNCTION_WORDS }>(&entry.function) == key.function
        && load_bytes::<{ 8 * layout::TRAIL_GROUP_WORDS }>(&entry.group) == key.group
}

/// Returns whether an event at this time may share the entry.
fn is_fresh(entry: &TrailEntry, time_us: u64) -> bool {
    let [first, last] = [&entry.event.time, &entry.last].map(|word| word.load(Ordering::Relaxed));
    let is_within = time_us
        .checked_sub(first)
        .is_some_and(|since| since <= SPAN_US);
    is_within && time_us.saturating_sub(last) <= PAUSE_US
}

impl TrailEntry {
    /// Returns the number of repeats of the entry's event, and the time of the last one.
    pub(super) fn repeats_of(&self, event: &Event) -> (u64, u64) {
        let [count, last] = [&self.repeats, &self.last].map(|word| word.load(Ordering::Relaxed));
        let is_within = last
            .checked_sub(event.time_us)
            .is_some_and(|span| span <= SPAN_US);
        match count.min(MOST) {
            count @ 1.. if event.what.kind.repeats() && is_within => (count, last),
            _ => (0, event.time_us),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{happening, numbers};
    use super::super::{Cause, Details, TrailEvent};
    use super::*;
    use crate::Happening;
    use crate::layout::TRAIL;
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
        assert!(first <= last.time_us);
        assert_eq!(until, last.time_us);
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
        let age = |number: u64, first_us: u64, span_us: u64| {
            let entry = scratch.trail_entry(number);
            let first = crate::events::now_us() - first_us;
            entry.event.time.store(first, Ordering::Relaxed);
            entry.last.store(first + span_us, Ordering::Relaxed);
            entry.repeats.store(5, Ordering::Relaxed);
        };
        scratch.record(&refusal(1));
        age(0, PAUSE_US / 2, 0);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [6]);
        age(0, PAUSE_US + 1_000, 0);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [5, 0], "after a pause");
        age(1, SPAN_US + 1_000, SPAN_US);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [5, 5, 0], "after ten minutes");
        // The wall clock was set back.
        let later = crate::events::now_us() + 5_000_000;
        let entry = scratch.trail_entry(2);
        entry.event.time.store(later, Ordering::Relaxed);
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
    }

    #[test]
    fn words_that_a_forger_left_count_nothing() {
        let scratch = Scratch::with_history();
        scratch.record(&refusal(1));
        let entry = scratch.trail_entry(0);
        let what = entry.event.what.load(Ordering::Relaxed);
        let time = entry.event.time.load(Ordering::Relaxed);
        let kill = EventKind::Kill as u64;
        for (last, kind) in [
            (u64::MAX, what),
            (time + SPAN_US + 1, what),
            (time - 1, what),
            (0, what),
            (time + 1, kill),
        ] {
            entry.repeats.store(9, Ordering::Relaxed);
            entry.last.store(last, Ordering::Relaxed);
            entry.event.what.store(kind, Ordering::Relaxed);
            let events = scratch.trail(0);
            assert_eq!(counts(&events), [0]);
            assert_eq!(events[0].last_us, time);
        }
        entry.event.what.store(what, Ordering::Relaxed);
        entry.last.store(time, Ordering::Relaxed);
        entry.repeats.store(u64::MAX - 1, Ordering::Relaxed);
        scratch.record(&refusal(1));
        assert_eq!(counts(&scratch.trail(0)), [MOST]);
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

//! Models of the words by which a process is asked for memory.

use super::super::demand::Door;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

#[derive(Default)]
struct Words([AtomicU64; 3]);

impl Words {
    fn door(&self) -> Door<'_, AtomicU64> {
        let [demand, count, asked_at] = &self.0;
        Door {
            demand,
            count,
            asked_at,
        }
    }
}

/// A time after the epoch.
const NOW: u64 = 1_000_000;

#[test]
fn of_askers_at_the_same_time_one_is_heard() {
    super::weak::bounded_model(None, || {
        let words = Arc::new(Words::default());
        let ask = |demand: u64, now: u64| {
            let words = Arc::clone(&words);
            thread::spawn(move || words.door().ask(demand, now))
        };
        let askers = [ask(1, NOW), ask(2, NOW + 100)];
        let third = words.door().ask(3, NOW + 199);
        let heard = askers.map(|asker| asker.join().expect("an asker"));
        let count = heard.iter().filter(|heard| **heard).count() + usize::from(third);
        assert_eq!(count, 1);
    });
}

/// The kernel compares the count before a sleep, so a process only sleeps while the count is the
/// one that it has seen.
#[test]
fn a_demand_is_never_slept_through() {
    super::weak::bounded_model(None, || {
        let words = Arc::new(Words::default());
        let theirs = Arc::clone(&words);
        let asker = thread::spawn(move || assert!(theirs.door().ask(7, NOW)));
        let door = words.door();
        let seen = door.count.load(Ordering::SeqCst);
        if door.take() == 0 {
            while door.count.load(Ordering::SeqCst) == seen {
                thread::yield_now();
            }
            assert_eq!(door.take(), 7);
        }
        asker.join().expect("the asker");
        assert_eq!(door.take(), 0, "told once");
    });
}

#[test]
fn one_of_two_waiting_threads_is_told() {
    super::weak::bounded_model(None, || {
        let words = Arc::new(Words::default());
        assert!(words.door().ask(7, NOW));
        let theirs = Arc::clone(&words);
        let other = thread::spawn(move || theirs.door().take());
        let own = words.door().take();
        assert_eq!(own + other.join().expect("the thread"), 7);
    });
}

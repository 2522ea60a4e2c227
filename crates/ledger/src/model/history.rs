//! A model of the words of the history: members that write one word at the same time.

use super::super::history::{change, value};
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

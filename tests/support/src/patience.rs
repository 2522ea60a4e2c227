//! Waits for events. Only a hang ends a wait without its event, and a hang is a failure.

use std::thread;
use std::time::{Duration, Instant};

/// Returns how long a test waits for an event before it fails: longer than any event takes on a
/// busy machine.
pub fn patience() -> Duration {
    let seconds = std::env::var("GPULIMIT_TEST_PATIENCE").ok();
    let seconds = seconds.map(|text| text.parse().expect("GPULIMIT_TEST_PATIENCE in seconds"));
    Duration::from_secs(seconds.unwrap_or(120))
}

/// Waits until the condition holds; returns false when the patience is over.
#[must_use = "a wait that ended without its event is a failure"]
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    while start.elapsed() < patience() {
        if holds() {
            return true;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    holds()
}

/// Waits until the condition holds.
///
/// # Panics
/// When the patience is over; the message names `what`.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(eventually(holds), "waited in vain: {what}");
}

//! The operating system of models. Time passes only when a process waits.

use super::atomic::AtomicU64;
use super::model::explorer;
use super::tick::Tick;
use std::time::{Duration, Instant};

/// Returns a namespace that no process of a model is in.
pub(super) fn pid_ns() -> u64 {
    1
}

pub(super) fn boot_ms() -> u64 {
    explorer::clock()
}

pub(super) fn wall_tick() -> Tick {
    let ms = explorer::clock();
    Tick::new(ms / 1_000, ms % 1_000 * 1_000_000)
}

pub(super) fn wall_ms() -> u64 {
    explorer::clock()
}

pub(super) fn steady_ms() -> u64 {
    explorer::clock()
}

pub(super) fn now() -> Instant {
    thread_local! {
        static BOOT: Instant = Instant::now();
    }
    BOOT.with(|boot| *boot + Duration::from_millis(explorer::clock()))
}

pub(super) fn sleep(_: Duration) {
    explorer::pause();
}

pub(super) fn yield_now() {
    explorer::pause();
}

pub(super) fn spin() {
    explorer::pause();
}

pub(super) fn futex_wait(_: &AtomicU64, _: u32, _: Duration) -> bool {
    explorer::pause();
    true
}

pub(super) fn futex_wake_all(_: &AtomicU64) -> usize {
    0
}

pub(super) fn reserve(_: &super::lock::Description, _: u64, _: u64) -> std::io::Result<()> {
    Ok(())
}

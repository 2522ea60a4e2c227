//! The other members' memory by NVML's figures: a request believes no less than the driver.

use std::sync::atomic::{AtomicU64, Ordering};

use gpulimit_group::Undisturbed;

use super::Device;
use crate::clock::monotonic_ms;
use crate::driver::figures;

/// How often a process looks at the memory of others, in milliseconds.
const EVERY_MS: u64 = 1_000;

/// The looks of this process at the memory of others.
#[derive(Default)]
pub(super) struct Others {
    /// The time of the next look in milliseconds; 0 before the first request.
    next: AtomicU64,
}

impl Device {
    /// Compares NVML's figures of the other members with their charges before the first request,
    /// and at most once a second. Mostly reads a clock.
    #[inline]
    pub(super) fn watch_others(&self) {
        let next = self.others.next.load(Ordering::Relaxed);
        if monotonic_ms() >= next {
            self.look_after(next);
        }
    }

    #[cold]
    fn look_after(&self, next: u64) {
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let later = monotonic_ms() + EVERY_MS;
        // Only one of several threads looks.
        if (self.others.next.compare_exchange(next, later, set, failed)).is_ok() {
            self.look_at_others();
        }
    }

    /// Looks once more if others held memory beyond their charges at the last look. Returns whether
    /// that made room. A request is refused for such memory only if this look still shows it.
    pub(super) fn recheck_others(&self) -> bool {
        self.book.group.has_uncovered() && self.look_at_others()
    }

    fn look_at_others(&self) -> bool {
        let _undisturbed = Undisturbed::new();
        let figures = || {
            let mut all = figures::processes(&self.id)?;
            // This process knows what it holds, and restores its own charge.
            all.retain(|(pid, _)| *pid != std::process::id());
            Some(all)
        };
        self.book.group.look_at_others(&figures)
    }
}

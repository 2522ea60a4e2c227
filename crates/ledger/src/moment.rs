//! Times that processes store in the ledger, in milliseconds since boot. A stored time in the
//! future is wrong, from another boot clock or a damaged file, and counts as none.

use super::atomic::{AtomicU64, Ordering};
use super::os;

/// Returns how long before `now` a stored time was; `None` if it is 0 or in the future.
pub(super) fn age(stored: &AtomicU64, now: u64) -> Option<u64> {
    since(stored.load(Ordering::Relaxed), now)
}

fn since(stored: u64, now: u64) -> Option<u64> {
    now.checked_sub(stored).filter(|_| stored != 0)
}

/// Returns how long ago the stored time was. Without one, stores the present time and returns 0.
pub(super) fn age_from_now_on(stored: &AtomicU64) -> u64 {
    let now = os::boot_ms();
    age(stored, now).unwrap_or_else(|| {
        stored.store(now, Ordering::Relaxed);
        0
    })
}

/// Stores the present time, and returns true, for one of all processes in this number of
/// milliseconds.
pub(super) fn is_first_in(stored: &AtomicU64, ms: u64) -> bool {
    let (now, before) = (os::boot_ms(), stored.load(Ordering::Relaxed));
    let is_recent = since(before, now).is_some_and(|age| age < ms);
    let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
    !is_recent && (stored.compare_exchange(before, now, order, failed)).is_ok()
}

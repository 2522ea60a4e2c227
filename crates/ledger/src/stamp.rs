//! Entries of a ring buffer that carry the number of their event as a stamp. A writer may die or
//! stop at any step: readers leave out an entry without the wanted stamp.

use super::atomic::{Ordering, Word};

/// Returns the stamp of an event.
const fn of(number: u64) -> u64 {
    number.wrapping_add(1)
}

/// Writes an entry by `write`, and stamps it.
pub(super) fn write<W: Word>(stamp: &W, number: u64, write: impl FnOnce()) {
    stamp.store(0, Ordering::Relaxed);
    // The stamp is cleared before this fence. A reader that sees a part of the new event also sees
    // the cleared stamp.
    W::fence(Ordering::Release);
    write();
    stamp.store(of(number), Ordering::Release);
}

/// Reads an entry by `read`. Returns `None` if the entry holds another event, or if a process is
/// writing or has not finished it.
pub(super) fn read<W: Word, T>(stamp: &W, number: u64, read: impl FnOnce() -> T) -> Option<T> {
    if stamp.load(Ordering::Acquire) != of(number) {
        return None;
    }
    let entry = read();
    W::fence(Ordering::Acquire);
    (stamp.load(Ordering::Relaxed) == of(number)).then_some(entry)
}

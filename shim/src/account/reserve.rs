//! A *reserve*: the charge for memory whose size only the driver knows. The driver's own memory,
//! the pools and the graphs of a device have one each.
//!
//! A call that may take such memory gets a [`Promise`] first: charged bytes that nothing uses, and
//! then bytes that are charged for the call. After the call the owner of the reserve asks the
//! driver how many bytes are in use now. Unused bytes go back, except the *headroom*.
//!
//! The figures that the book derives from those of a reserve are published in one place, when the
//! lock is released ([`Changes`]).

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::book::Book;

/// The figures of a reserve, in bytes. `own`: what its owner keeps with them.
#[derive(Default)]
pub struct State<T> {
    /// Bytes that are charged.
    pub held: u64,
    /// Bytes in use, as the driver last said.
    pub used: u64,
    /// Bytes that are promised to calls.
    pub promised: u64,
    /// Bytes that are kept for a later use.
    pub kept: u64,
    /// The *headroom*: bytes that stay charged beyond all these, for the next call.
    pub headroom: u64,
    /// Bytes that stay charged beyond those in use, promised or not.
    pub least: u64,
    /// The number of calls under way that have a promise, or are paying for one.
    pub callers: u32,
    pub own: T,
}

impl<T> State<T> {
    /// Returns the bytes that are in use, promised or kept.
    pub fn needed(&self) -> u64 {
        self.used + self.promised + self.kept
    }

    /// Returns the charged bytes that are not needed.
    pub fn idle(&self) -> u64 {
        self.held.saturating_sub(self.needed())
    }

    /// Returns the bytes that stay charged.
    pub fn wanted(&self) -> u64 {
        (self.needed() + self.headroom).max(self.used + self.least)
    }

    /// Returns how many bytes of those that stay charged are not charged yet.
    pub fn short(&self) -> u64 {
        self.wanted().saturating_sub(self.held)
    }

    /// Promises up to `bytes` of the idle bytes to a call. Returns the number of bytes promised.
    pub fn promise(&mut self, bytes: u64) -> u64 {
        let promised = self.idle().min(bytes);
        self.promised += promised;
        promised
    }

    /// Ends the promise of `bytes`.
    pub fn release(&mut self, bytes: u64) {
        self.promised = self.promised.saturating_sub(bytes);
    }

    /// Returns the bytes in use, and the idle ones of the book that stay.
    fn published(&self) -> (u64, u64) {
        let stays = self.wanted().min(self.held);
        (self.used, stays.saturating_sub(self.used))
    }
}

/// A reserve.
#[derive(Default)]
pub struct Reserve<T> {
    state: Mutex<State<T>>,
    /// Notified when figures have changed.
    settled: Condvar,
}

impl<T> Reserve<T> {
    /// Returns the figures, to read them.
    pub fn read(&self) -> impl Deref<Target = State<T>> {
        self.state.lock()
    }

    /// Returns the figures, to change them.
    #[inline(never)]
    pub fn change<'a>(&'a self, book: &'a Book) -> Changes<'a, T> {
        let state = self.state.lock();
        Changes {
            reserve: self,
            book,
            before: state.published(),
            state,
        }
    }

    /// Calls `work` with what the owner keeps beside the figures.
    pub fn own<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.state.lock().own)
    }

    /// Waits, until `until` at most, for a change by another thread's call. Returns false if no
    /// call is under way, or the time is over.
    pub fn await_others(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        state.callers > 0 && !self.settled.wait_until(&mut state, until).timed_out()
    }
}

/// The figures of a reserve, while this thread changes them. Dropping the value publishes the
/// changes.
pub struct Changes<'a, T> {
    reserve: &'a Reserve<T>,
    pub book: &'a Book,
    state: MutexGuard<'a, State<T>>,
    before: (u64, u64),
}

impl<T> Changes<'_, T> {
    /// Publishes the changes.
    #[inline(never)]
    fn publish(&mut self) {
        let now = self.published();
        publish(self.book, self.before, now);
        self.before = now;
        self.reserve.settled.notify_all();
    }

    /// Charges `bytes` that the driver has taken beyond those charged in advance. Returns the bytes
    /// that are charged above the limit.
    #[inline(never)]
    pub fn cover(&mut self, bytes: u64) -> u64 {
        let fits = bytes == 0 || self.book.try_charge(bytes);
        if !fits {
            self.book.group.charge_unchecked(bytes);
        }
        self.held += bytes;
        self.book.add_idle(bytes);
        if fits { 0 } else { bytes }
    }

    /// Uncharges the bytes beyond those that stay. Call after the driver's function has returned.
    pub fn give_back(&mut self) -> u64 {
        self.keep(self.wanted())
    }

    /// Uncharges the bytes beyond `bytes`, and returns their number.
    #[inline(never)]
    pub fn keep(&mut self, bytes: u64) -> u64 {
        self.publish();
        let excess = self.held.saturating_sub(bytes);
        self.held -= excess;
        self.book.uncharge_idle(excess);
        excess
    }

    /// Charges what the headroom lacks, if the group has room.
    pub fn refill(&mut self) {
        let short = self.short();
        if short > 0 && self.book.try_charge_ahead(short) {
            self.held += short;
        }
    }

    /// Waits for a change by another thread. Returns false at the time `until`.
    pub fn wait(&mut self, until: Instant) -> bool {
        self.publish();
        let settled = &self.reserve.settled;
        let in_time = !settled.wait_until(&mut self.state, until).timed_out();
        self.before = self.published();
        in_time
    }
}

/// Publishes the figures that the book derives: its idle bytes, and those of them that stay.
fn publish(book: &Book, before: (u64, u64), now: (u64, u64)) {
    book.adjust_idle(before.0.wrapping_sub(now.0) as i64);
    book.adjust_headroom(now.1.wrapping_sub(before.1) as i64);
    if now.0 > before.0 {
        book.group.note_usage();
    }
}

impl<T> Deref for Changes<'_, T> {
    type Target = State<T>;

    fn deref(&self) -> &State<T> {
        &self.state
    }
}

impl<T> DerefMut for Changes<'_, T> {
    fn deref_mut(&mut self) -> &mut State<T> {
        &mut self.state
    }
}

impl<T> Drop for Changes<'_, T> {
    #[inline(never)]
    fn drop(&mut self) {
        self.publish();
    }
}

/// Bytes of a reserve that are promised to a call.
#[must_use = "dropping the guard ends the promise of its bytes"]
pub struct Promise<'a, T> {
    reserve: &'a Reserve<T>,
    pub book: &'a Book,
    pub bytes: u64,
    /// Whether the call counts as a caller.
    calls: bool,
}

impl<'a, T> Promise<'a, T> {
    /// Makes a guard for `bytes` that [`Promise::lend`] has promised, or for 0 bytes.
    pub fn lent(reserve: &'a Reserve<T>, book: &'a Book, bytes: u64) -> Self {
        Promise {
            reserve,
            book,
            bytes,
            calls: bytes > 0,
        }
    }

    /// Promises `bytes` to a call if so many are idle. Makes no guard.
    pub fn lend(reserve: &Reserve<T>, bytes: u64) -> bool {
        let mut state = reserve.state.lock();
        let enough = state.idle() >= bytes;
        if enough {
            state.promised += bytes;
            state.callers += 1;
        }
        enough
    }

    pub fn change(&self) -> Changes<'a, T> {
        self.reserve.change(self.book)
    }

    /// Raises the promised bytes to `to`: by idle bytes first, and then by bytes that `charge`
    /// charges as idle. A refusal keeps the bytes promised before.
    pub fn raise<E>(&mut self, to: u64, charge: &dyn Fn(u64) -> Result<(), E>) -> Result<(), E> {
        // The loop ends, because each round charges bytes and leaves fewer bytes missing.
        loop {
            let missing = {
                let mut state = self.change();
                let more = to.saturating_sub(self.bytes);
                let missing = more.saturating_sub(state.idle());
                state.callers += u32::from(!std::mem::replace(&mut self.calls, true));
                if missing == 0 {
                    self.bytes += state.promise(more);
                    return Ok(());
                }
                missing
            };
            // `charge` can wait for room in the group. So no lock is held during the call.
            charge(missing)?;
            self.add(missing, to);
        }
    }

    /// Adds `charged` bytes to the reserve, and promises up to `to` to the call. Under one lock,
    /// as another thread might uncharge the bytes in between.
    #[inline(never)]
    pub fn add(&mut self, charged: u64, to: u64) {
        let mut state = self.change();
        state.held += charged;
        self.bytes += state.promise(to.saturating_sub(self.bytes));
    }

    /// Ends the promise, under the lock of `state`.
    pub fn end(&mut self, state: &mut State<T>) {
        state.release(std::mem::take(&mut self.bytes));
        state.callers -= u32::from(std::mem::take(&mut self.calls));
    }
}

/// The guard is dropped when the call was not made or has taken no memory.
impl<T> Drop for Promise<'_, T> {
    #[inline(never)]
    fn drop(&mut self) {
        if !self.calls {
            return;
        }
        let mut state = self.change();
        self.end(&mut state);
        // After a panic it is unknown whether the driver was called. So the bytes stay charged
        // until `Process::recover` measures.
        if !std::thread::panicking() {
            state.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpulimit_base::device::DeviceId;

    use super::*;
    use crate::account::scratch::Scratch;

    fn state() -> State<()> {
        State {
            held: 100,
            used: 60,
            promised: 10,
            kept: 5,
            ..State::default()
        }
    }

    #[test]
    fn charged_bytes_that_are_neither_used_nor_promised_nor_kept_are_idle() {
        let mut state = state();
        assert_eq!((state.needed(), state.idle()), (75, 25));
        assert_eq!(state.promise(20), 20);
        assert_eq!((state.promised, state.idle()), (30, 5));
        assert_eq!(state.promise(6), 5);
        assert_eq!((state.promised, state.idle()), (35, 0));
        state.used += 1;
        assert_eq!(state.idle(), 0);
        state.release(4);
        assert_eq!((state.promised, state.idle()), (31, 3));
    }

    #[test]
    fn the_headroom_stays_beyond_promised_bytes_and_the_least_beside_them() {
        let mut state = state();
        assert_eq!((state.wanted(), state.short()), (75, 0));
        assert_eq!(state.published(), (60, 15));
        state.headroom = 20;
        assert_eq!((state.wanted(), state.short()), (95, 0));
        state.headroom = 30;
        assert_eq!((state.wanted(), state.short()), (105, 5));
        assert_eq!(state.published(), (60, 40), "what is charged");
        (state.headroom, state.least) = (0, 14);
        assert_eq!(state.wanted(), 75);
        state.least = 50;
        assert_eq!((state.wanted(), state.short()), (110, 10));
    }

    fn book(group: &Scratch) -> Book {
        let member = group.member();
        let device = member.device(DeviceId::gpu([7; 16]), 1 << 20);
        Book::new(0, device.expect("a device"))
    }

    #[test]
    fn changes_are_published_and_the_rest_is_uncharged() {
        const MIB: u64 = 1 << 20;
        let group = Scratch::new(&["max=100M"]);
        let (book, reserve) = (book(&group), Reserve::<()>::default());
        let figures = || {
            let usage = book.group.own_usage();
            (usage.charged / MIB, usage.idle / MIB, book.free() / MIB)
        };
        let charge = |bytes| book.try_charge_ahead(bytes).then_some(()).ok_or(());
        let mut promise = Promise::lent(&reserve, &book, 0);
        assert_eq!(promise.raise(200 * MIB, &charge), Err(()));
        assert_eq!(promise.raise(30 * MIB, &charge), Ok(()));
        assert_eq!(promise.raise(200 * MIB, &charge), Err(()));
        assert_eq!((promise.bytes, figures()), (30 * MIB, (30, 30, 70)));
        let mut state = promise.change();
        state.used = 20 * MIB;
        promise.end(&mut state);
        state.headroom = 4 * MIB;
        drop(state);
        assert_eq!(figures(), (30, 10, 76), "6 MiB can be had");
        let mut state = reserve.change(&book);
        assert_eq!(state.give_back(), 6 * MIB);
        state.used = 25 * MIB;
        assert_eq!(state.cover(MIB), 0);
        state.refill();
        drop(state);
        assert_eq!(figures(), (29, 4, 71));
        let mut state = reserve.change(&book);
        state.used = 128 * MIB;
        assert_eq!(state.cover(99 * MIB), 99 * MIB, "above the limit");
        drop(state);
        assert_eq!(figures(), (128, 0, 0));
        drop(promise);
    }

    #[test]
    fn a_call_waits_only_for_other_calls_under_way() {
        let group = Scratch::new(&["max=100M"]);
        let (book, reserve) = (book(&group), Reserve::<()>::default());
        let hour = Instant::now() + Duration::from_secs(3600);
        assert!(!reserve.await_others(hour), "no call is under way");
        reserve.change(&book).held += 5;
        assert!(!Promise::lend(&reserve, 6));
        assert!(Promise::lend(&reserve, 5));
        assert!(!reserve.await_others(Instant::now()), "the time is over");
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| reserve.await_others(hour));
            while !waits.is_finished() {
                drop(reserve.change(&book));
                std::thread::yield_now();
            }
            assert!(waits.join().expect("an answer"));
        });
        drop(Promise::lent(&reserve, &book, 5));
        assert!(!reserve.await_others(hour));
        assert_eq!(reserve.read().held, 0, "a dropped promise goes back");
    }
}

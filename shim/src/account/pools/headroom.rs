//! The headroom of a device's pools: bytes that are charged before the driver takes them.
//!
//! A call that may make a pool grow takes its possible growth out of the headroom, and gives back
//! what the pool has not grown by. If a look at the pool is spared after the call, the pool keeps
//! the call's step until it is looked at. So the headroom belongs to calls under way, not to pools:
//! many pools with memory need no more than one.
//!
//! One step stays while any pool of the device has memory. As many steps as calls were under way at
//! once stay for a second, unless the group is full. Calls that use a step which their pool has
//! kept are not counted, so this number can be too small; the calls then charge steps anew.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::STEP;
use crate::account::book::Book;
use crate::account::ongoing::Ongoing;
use crate::account::reserve::{Changes, Reserve, State};

/// How long the steps stay that calls needed at once, in milliseconds.
const STAY_MS: u64 = 1_000;

/// The calls that take headroom. In the reserve of a device's pools, the bytes in use are those of
/// all pools, and the promised ones those that pools have for calls under way, and for growth that
/// was not read yet.
#[derive(Default)]
pub struct Calls {
    /// The reserved bytes of all pools as the driver last reported them.
    reserved: u64,
    /// The number of calls that have made a pool grow and whose growth is neither charged nor
    /// undone yet.
    pub(super) growing: u32,
    /// The number of calls under way that have taken headroom.
    calls: u32,
    /// The most such calls at once since `at`, a time in milliseconds.
    most: u32,
    at: u64,
}

impl Calls {
    /// Counts a call that takes headroom.
    pub(super) fn begin(&mut self, now: impl Fn() -> u64) {
        self.calls += 1;
        if self.calls > 1 && self.calls >= self.most {
            (self.most, self.at) = (self.calls, now());
        }
    }

    /// Ends `calls` that have taken headroom.
    pub(super) fn end(&mut self, calls: u32) {
        self.calls = self.calls.saturating_sub(calls);
    }
}

impl State<Calls> {
    /// Counts `after` reserved bytes of a pool instead of `before`. One step stays charged as long
    /// as pools have memory.
    pub(super) fn reserve(&mut self, before: u64, after: u64) {
        self.own.reserved = (self.own.reserved + after).saturating_sub(before);
        self.least = if self.own.reserved > 0 { STEP } else { 0 };
    }

    /// Adds `bytes`, newly charged, and promises them to a pool.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.held += bytes;
        self.promised += bytes;
    }

    /// Returns the bytes that stay charged. `full`: the group is full, so nothing stays that was
    /// only needed before.
    fn staying(&mut self, full: bool, now: impl Fn() -> u64) -> u64 {
        let wanted = self.wanted();
        if self.held <= wanted {
            return wanted;
        }
        let own = &mut self.own;
        if full || own.reserved == 0 || now().saturating_sub(own.at) > STAY_MS {
            own.most = 0;
        }
        wanted.max(self.used + u64::from(own.most) * STEP)
    }
}

impl Changes<'_, Calls> {
    /// Uncharges the bytes that do not stay, and returns their number.
    pub(super) fn give_back_steps(&mut self, full: bool, now: impl Fn() -> u64) -> u64 {
        let stays = self.staying(full, now);
        self.keep(stays)
    }
}

/// The headroom of one device.
#[derive(Default)]
pub struct Headroom {
    reserve: Reserve<Calls>,
    /// The number of calls that wait for headroom.
    waiting: AtomicU32,
}

impl Headroom {
    pub(super) fn change<'a>(&'a self, book: &'a Book) -> Changes<'a, Calls> {
        self.reserve.change(book)
    }

    /// Returns whether a call waits for headroom. Asked under a pool's lock: a waiting call looks
    /// at each pool after it has begun to wait, so either this is true, or that look comes later.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits, until `until` at most, while calls under way have so much of the headroom that too
    /// little is left for `bytes`. Returns the number of bytes lent to the caller.
    ///
    /// `look` looks at all pools of the device, which then keep only what calls under way have.
    pub(super) fn await_some(
        &self,
        book: &Book,
        bytes: u64,
        until: Instant,
        look: impl FnOnce(),
    ) -> u64 {
        let _waits = Ongoing::begin(&self.waiting);
        look();
        let mut state = self.change(book);
        while state.idle() < bytes.min(state.least)
            && (state.promised > 0 || state.own.growing > 0)
            && state.wait(until)
        {}
        state.promise(bytes)
    }
}

#[cfg(test)]
mod tests {
    use gpulimit_base::device::DeviceId;

    use super::*;
    use crate::account::scratch::Scratch;

    fn excess(state: &mut State<Calls>, full: bool, now: u64) -> u64 {
        let excess = state.held - state.staying(full, || now);
        state.held -= excess;
        excess / STEP
    }

    fn state(used: u64, unused: u64) -> State<Calls> {
        let mut state = State {
            held: (used + unused) * STEP,
            used: used * STEP,
            ..State::default()
        };
        state.reserve(0, used * STEP);
        state
    }

    #[test]
    fn one_step_stays_for_all_pools_with_memory() {
        let mut state = state(70, 3);
        assert_eq!((excess(&mut state, false, 0), state.short()), (2, 0));
        assert_eq!(state.promise(2 * STEP), STEP);
        state.release(STEP);
        state.used += STEP;
        assert_eq!((state.idle(), state.promised, state.short()), (0, 0, STEP));
        state.charge(2 * STEP);
        assert_eq!(excess(&mut state, true, 0), 0, "pools have both steps");
        state.release(2 * STEP);
        state.reserve(70 * STEP, 0);
        assert_eq!((excess(&mut state, false, 0), state.short()), (2, 0));
    }

    #[test]
    fn steps_of_calls_at_once_stay_for_a_second() {
        let mut state = state(1, 4);
        for _ in 0..3 {
            state.own.begin(|| 5_000);
        }
        state.own.end(3);
        assert_eq!(excess(&mut state, false, 5_000 + STAY_MS), 1);
        state.own.begin(|| 9_000);
        assert_eq!(excess(&mut state, false, 5_001 + STAY_MS), 2);
        state.own.begin(|| 9_000);
        state.held = 5 * STEP;
        assert_eq!(excess(&mut state, false, 9_000), 2);
        assert_eq!(excess(&mut state, true, 9_000), 1, "the group is full");
    }

    #[test]
    fn a_call_waits_for_headroom_only_while_others_have_it() {
        let group = Scratch::new(&["max=100G"]);
        let member = group.member();
        let device = member.device(DeviceId::gpu([7; 16]), STEP);
        let book = &Book::new(0, device.expect("a device"));
        let headroom = &book.pools;
        let hour = Instant::now() + std::time::Duration::from_secs(3600);
        let wait = |until, looks: &dyn Fn()| headroom.await_some(book, STEP, until, looks);
        let take_back = || {
            let mut state = headroom.change(book);
            state.release(STEP);
        };
        assert_eq!(wait(hour, &|| ()), 0, "no pool has memory");
        headroom.change(book).reserve(0, STEP);
        assert_eq!(wait(hour, &|| ()), 0, "no call is under way");
        headroom.change(book).charge(STEP);
        assert_eq!(wait(Instant::now(), &|| ()), 0, "the time is over");
        assert_eq!(wait(hour, &take_back), STEP);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| wait(hour, &|| ()));
            while !headroom.is_awaited() {
                std::thread::yield_now();
            }
            take_back();
            assert_eq!(waits.join().expect("an answer"), STEP);
        });
        headroom.change(book).own.growing = 1;
        assert_eq!(wait(Instant::now(), &|| ()), 0);
    }
}

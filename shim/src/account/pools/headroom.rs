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

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::STEP;
use crate::account::ongoing::Ongoing;

/// How long the steps stay that calls needed at once, in milliseconds.
const STAY_MS: u64 = 1_000;

/// The figures of a device's headroom, in bytes.
#[derive(Default)]
pub struct State {
    /// Bytes that are charged beyond the reserved bytes of the pools.
    pub(super) held: u64,
    /// Bytes of `held` that pools have, for calls under way and for growth that was not read yet.
    pub(super) lent: u64,
    /// The reserved bytes of all pools as the driver last reported them.
    pub(super) reserved: u64,
    /// The number of calls that have made a pool grow and whose growth is neither charged nor
    /// undone yet.
    pub(super) growing: u32,
    /// The number of calls under way that have taken headroom.
    calls: u32,
    /// The most such calls at once since `at`, a time in milliseconds.
    most: u32,
    at: u64,
}

impl State {
    pub(super) fn idle(&self) -> u64 {
        self.held.saturating_sub(self.lent)
    }

    /// Returns the bytes that stay charged as long as pools have memory.
    pub(super) fn least(&self) -> u64 {
        if self.reserved > 0 { STEP } else { 0 }
    }

    /// Counts `after` reserved bytes of a pool instead of `before`. Returns the change of
    /// [`State::least`].
    pub(super) fn reserve(&mut self, before: u64, after: u64) -> i64 {
        let least = self.least();
        self.reserved = (self.reserved + after).saturating_sub(before);
        self.least().wrapping_sub(least) as i64
    }

    /// Returns how many bytes of the headroom's last step are not charged.
    pub(super) fn short(&self) -> u64 {
        self.least().saturating_sub(self.held)
    }

    /// Lends up to `bytes` to a pool. Returns the number of bytes lent.
    pub(super) fn lend(&mut self, bytes: u64) -> u64 {
        let lent = self.idle().min(bytes);
        self.lent += lent;
        lent
    }

    /// Adds `bytes`, newly charged, and lends them to a pool.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.held += bytes;
        self.lent += bytes;
    }

    /// Takes out `bytes` that a pool had, because its memory has grown into them.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
        self.lent = self.lent.saturating_sub(bytes);
    }

    /// Takes back `bytes` that a pool had.
    pub(super) fn take_back(&mut self, bytes: u64) {
        self.lent = self.lent.saturating_sub(bytes);
    }

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

    /// Takes out the bytes that are not needed, and returns their number. `full`: the group is
    /// full, so nothing stays that was only needed before.
    pub(super) fn take_excess(&mut self, full: bool, now: impl Fn() -> u64) -> u64 {
        let needed = self.lent.max(self.least());
        if self.held <= needed {
            return 0;
        }
        if full || self.reserved == 0 || now().saturating_sub(self.at) > STAY_MS {
            self.most = 0;
        }
        let stays = needed.max(u64::from(self.most) * STEP);
        let excess = self.held.saturating_sub(stays);
        self.held -= excess;
        excess
    }
}

/// The headroom of one device.
#[derive(Default)]
pub struct Headroom {
    state: Mutex<State>,
    /// The number of calls that wait for headroom.
    waiting: AtomicU32,
    /// Notified when a call has ended while others wait.
    settled: Condvar,
}

impl Headroom {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns whether a call waits for headroom. Asked under a pool's lock: a waiting call looks
    /// at each pool after it has begun to wait, so either this is true, or that look comes later.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn notify(&self) {
        if self.is_awaited() {
            self.settled.notify_all();
        }
    }

    /// Waits, until `until` at most, while calls under way have so much of the headroom that too
    /// little is left for `bytes`. Returns the number of bytes lent to the caller.
    ///
    /// `look` looks at all pools of the device, which then keep only what calls under way have.
    pub(super) fn await_some(&self, bytes: u64, until: Instant, look: impl FnOnce()) -> u64 {
        let _waits = Ongoing::begin(&self.waiting);
        look();
        let mut state = self.lock();
        while state.idle() < bytes.min(state.least()) && (state.lent > 0 || state.growing > 0) {
            if self.settled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.lend(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excess(state: &mut State, full: bool, now: u64) -> u64 {
        state.take_excess(full, || now) / STEP
    }

    #[test]
    fn one_step_stays_for_all_pools_with_memory() {
        let mut state = State {
            held: 3 * STEP,
            reserved: 70 * STEP,
            ..State::default()
        };
        assert_eq!((excess(&mut state, false, 0), state.short()), (2, 0));
        assert_eq!(state.lend(2 * STEP), STEP);
        state.spend(STEP);
        assert_eq!((state.held, state.lent, state.short()), (0, 0, STEP));
        state.charge(2 * STEP);
        assert_eq!(excess(&mut state, true, 0), 0, "pools have both steps");
        state.take_back(2 * STEP);
        state.reserved = 0;
        assert_eq!((excess(&mut state, false, 0), state.short()), (2, 0));
    }

    #[test]
    fn steps_of_calls_at_once_stay_for_a_second() {
        let mut state = State {
            held: 4 * STEP,
            reserved: STEP,
            ..State::default()
        };
        for _ in 0..3 {
            state.begin(|| 5_000);
        }
        state.end(3);
        assert_eq!(excess(&mut state, false, 5_000 + STAY_MS), 1);
        state.begin(|| 9_000);
        assert_eq!(excess(&mut state, false, 5_001 + STAY_MS), 2);
        state.begin(|| 9_000);
        state.held = 4 * STEP;
        assert_eq!(excess(&mut state, false, 9_000), 2);
        assert_eq!(excess(&mut state, true, 9_000), 1, "the group is full");
    }

    #[test]
    fn a_call_waits_for_headroom_only_while_others_have_it() {
        let headroom = Headroom::default();
        let hour = Instant::now() + std::time::Duration::from_secs(3600);
        let wait = |until, looks: &dyn Fn()| headroom.await_some(STEP, until, looks);
        assert_eq!(wait(hour, &|| ()), 0, "no pool has memory");
        headroom.lock().reserved = STEP;
        assert_eq!(wait(hour, &|| ()), 0, "no call is under way");
        headroom.lock().charge(STEP);
        assert_eq!(wait(Instant::now(), &|| ()), 0, "the time is over");
        assert_eq!(wait(hour, &|| headroom.lock().take_back(STEP)), STEP);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| wait(hour, &|| ()));
            while !headroom.is_awaited() {
                std::thread::yield_now();
            }
            headroom.lock().take_back(STEP);
            headroom.notify();
            assert_eq!(waits.join().expect("an answer"), STEP);
        });
        headroom.lock().growing = 1;
        assert_eq!(wait(Instant::now(), &|| ()), 0);
    }
}

//! Stream-ordered memory: the physical bytes belong to the pool, not to the pointer.
//!
//! A pool's reserved bytes grow in steps of 32 MiB inside an allocation (never by more than the
//! request rounded up to a step: measured) and shrink inside synchronise calls, `TrimTo` and
//! destruction. Whether an allocation makes the pool grow only the driver knows: it depends on how
//! the unused memory lies and on which work has come to an end. So its largest possible growth is
//! charged before the call, always, and one look at the pool's attribute follows it, unless the
//! address tells that the pool has no more than before ([`steps`]).
//!
//! A pool that holds memory has one step charged beyond it, its *headroom*. It pays ahead for the
//! next allocation, also when the group is full, so that what the pool holds can be reused there.
//! Growth that consumes it must charge it anew, or is undone and refused.
//!
//! A pool of managed memory shows the same figures, but the GPU keeps what the pool has ever handed
//! out until the pool is destroyed and its last allocation freed, whatever is freed or trimmed
//! before: all steps of address space that allocations were ever in (measured, H200, 580.159.04, to
//! the byte). So its charge never shrinks before that. Where the group is full, what the pool has
//! given back pays for its next growth: most often that lies at the same addresses, and is undone
//! where it does not.

pub mod lent;
pub mod promise;
mod steps;

use std::ops::Range;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpulimit_ledger::Category;
use parking_lot::{Condvar, Mutex, RwLock};

use super::book::Book;
use super::rounding::round_up;
use crate::abi::{
    Device as Ordinal, DevicePtr, MEMPOOL_ATTR_RESERVED_MEM_CURRENT, MEMPOOL_ATTR_USED_MEM_CURRENT,
    MemPool, Status,
};
use crate::account::maps::{Map, Set};
use crate::driver::capture::relaxed;
use crate::driver::{answer, cuda};
use lent::Lent;
use promise::Promise;
use steps::Steps;

/// A pool's reserved bytes grow in multiples of this (measured).
pub const STEP: u64 = 32 << 20;

/// How long an allocation waits before it is refused: for those of other threads, which have the
/// headroom, and for the work on its stream.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// So many allocations go without a look at most: whatever a driver may do that none has been seen
/// to do, it is found soon.
const UNSEEN: u32 = 63;

#[derive(Default)]
struct State {
    /// Charged for this pool.
    held: u64,
    /// Of `held`, promised to calls under way.
    prepaid: u64,
    /// Calls that have made the pool grow and do not know yet whether it may stay so.
    growing: u32,
    /// Reserved by the pool as last seen; of a managed pool, the most that the GPU may have of it.
    reserved: u64,
    /// Of `reserved`, what a managed pool has given back and the GPU has kept.
    kept: u64,
    /// It has grown by more than was paid.
    overrun: bool,
    /// Allocations since then.
    unseen: u32,
    /// Calls under way that have paid for more than a step.
    large: u32,
    /// Where its memory lies.
    steps: Steps,
    /// It is destroyed, or about to be: the driver must not be asked about it.
    retired: bool,
}

impl State {
    /// What the pool itself calls reserved.
    fn current(&self) -> u64 {
        self.reserved - self.kept
    }

    fn idle(&self) -> u64 {
        self.held.saturating_sub(self.reserved + self.prepaid)
    }

    /// Bytes that pay for growth where the pool grows into what it has had before.
    fn credit(&self) -> u64 {
        self.held.saturating_sub(self.current() + self.prepaid)
    }

    /// Bytes beyond what is reserved that are to be charged, whether promised to a call under way
    /// or not.
    fn headroom(&self) -> u64 {
        if self.current() > 0 { STEP } else { 0 }
    }

    /// Bytes that are missing from the headroom.
    fn short(&self) -> u64 {
        (self.reserved + self.headroom()).saturating_sub(self.held)
    }

    /// Bytes that are idle beyond the headroom.
    fn excess(&self) -> u64 {
        self.idle().saturating_sub(self.headroom())
    }

    /// Bytes that the pool has and that are not charged.
    fn beyond(&self) -> u64 {
        self.reserved.saturating_sub(self.held)
    }

    /// Whether a look is needed before `bytes` are paid for: beyond a step, the headroom may be all
    /// that pays for what has not been seen.
    #[inline]
    fn needs_look(&self, bytes: u64) -> bool {
        bytes > STEP && self.unseen > 0
    }

    /// Whether calls under way have what of the headroom could pay for `bytes`.
    fn is_lent(&self, bytes: u64) -> bool {
        (self.prepaid > 0 || self.growing > 0) && self.idle() < bytes.min(self.headroom())
    }

    /// Whether the pool is known to have no more than when it was last seen, now that it has handed
    /// out `range`, and the headroom that it should.
    #[inline]
    fn is_as_seen(&self, range: &Range<DevicePtr>) -> bool {
        self.large == 0
            && self.unseen < UNSEEN
            && self.held - self.reserved == STEP + self.prepaid
            && self.steps.cover(range, self.reserved)
    }

    /// Whether a call that has paid `bytes` and handed out `range` can do without a look.
    #[inline]
    fn spare_look(&mut self, bytes: u64, range: &Range<DevicePtr>) -> bool {
        let spared = bytes == STEP && self.is_as_seen(range);
        self.unseen += u32::from(spared);
        spared
    }

    /// After a look: whether the pool has its headroom. Without it, it has grown, and that is to be
    /// seen to.
    fn conclude(&mut self) -> bool {
        let whole = self.short() == 0;
        self.growing += u32::from(!whole);
        whole
    }

    /// A call begins for which `paid` has been found, of the `bytes` by which the pool may grow.
    fn begin(&mut self, paid: u64, bytes: u64) {
        self.prepaid += paid;
        self.large += u32::from(bytes > STEP);
    }

    /// Pays for `bytes` out of what is idle: all or nothing.
    #[inline]
    fn prepay(&mut self, bytes: u64) -> bool {
        let enough = self.idle() >= bytes;
        if enough {
            self.begin(bytes, bytes);
        }
        enough
    }

    /// So much more has been charged for a call under way.
    fn charge(&mut self, bytes: u64) {
        self.held += bytes;
        self.prepaid += bytes;
    }

    fn end(&mut self, paid: u64, bytes: u64) {
        self.prepaid = self.prepaid.saturating_sub(paid);
        self.large = self.large.saturating_sub(u32::from(bytes > STEP));
    }
}

/// A memory pool whose memory lies on a device (`counted`), or elsewhere.
pub struct Pool {
    handle: MemPool,
    pub device: Ordinal,
    /// Whether it takes device memory of ours: not for host and imported pools.
    pub counted: bool,
    /// Whether its memory is managed.
    pub managed: bool,
    state: Mutex<State>,
    /// A call under way has ended.
    settled: Condvar,
}

impl Pool {
    fn new(handle: MemPool, device: Ordinal, counted: bool) -> Self {
        let pool = Pool {
            handle,
            device,
            counted,
            managed: false,
            state: Mutex::default(),
            settled: Condvar::new(),
        };
        if counted && pool.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != Some(0) {
            pool.state.lock().steps = Steps::incomplete();
        }
        pool
    }

    fn category(&self) -> Category {
        match self.managed {
            true => Category::Managed,
            false => Category::Pools,
        }
    }

    #[inline]
    fn attribute(&self, attribute: i32) -> Option<u64> {
        let ask = |bytes| cuda::cuMemPoolGetAttribute(self.handle, attribute, bytes);
        relaxed(|| answer(ask)).ok()
    }

    /// Bytes that the pool has reserved, as the driver says; 0 where it says nothing.
    fn asked_reserved(&self) -> u64 {
        self.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            .unwrap_or(0)
    }

    /// Pays for the growth of `bytes` out of what is idle. False when that is not enough: see
    /// [`Pool::pay`].
    #[inline]
    pub fn prepay(&self, book: &Book, bytes: u64) -> bool {
        let mut state = self.state.lock();
        self.look_for(book, &mut state, bytes);
        state.prepay(bytes)
    }

    /// Pays for the growth of `bytes` out of what a managed pool has given back: it may grow into
    /// that. False when it is too little.
    pub fn borrow(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let enough = self.managed && state.credit() >= bytes;
        if enough {
            state.begin(bytes, bytes);
        }
        enough
    }

    /// Whether the pool has grown by more than was paid since this was last asked.
    pub fn has_overrun(&self) -> bool {
        std::mem::take(&mut self.state.lock().overrun)
    }

    #[inline]
    fn look_for(&self, book: &Book, state: &mut State, bytes: u64) {
        if state.needs_look(bytes) {
            self.look(book, state);
        }
    }

    /// Pays for the growth of `bytes` out of what is idle, and for the rest by `charge`, which
    /// charges ahead. Before that it waits, no longer than `until`, for calls of other threads that
    /// have the headroom.
    pub fn pay<E>(
        &self,
        book: &Book,
        bytes: u64,
        until: Option<Instant>,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let lent = {
            let mut state = self.state.lock();
            if let Some(until) = until {
                while state.is_lent(bytes) {
                    if self.settled.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
            }
            self.look_for(book, &mut state, bytes);
            let lent = state.idle().min(bytes);
            state.begin(lent, bytes);
            lent
        };
        let promise = Promise::partly(self, lent, bytes);
        let rest = bytes - lent;
        if rest > 0 {
            charge(rest)?;
            self.state.lock().charge(rest);
        }
        promise.stays();
        Ok(())
    }

    /// A call is under way for which `bytes` were charged ahead before its pool was known.
    pub fn adopt(&self, bytes: u64) -> Promise<'_> {
        let mut state = self.state.lock();
        state.begin(0, bytes);
        state.charge(bytes);
        Promise::new(self, bytes)
    }

    /// The call that had paid `bytes` ahead is over, and has allocated `range`, if anything: looks
    /// how the pool stands now, unless the range tells. True when it has its headroom. Without it,
    /// it has grown: the caller sees to that under a [`promise::Growth`].
    #[inline]
    fn settle(&self, book: &Book, bytes: u64, range: Option<Range<DevicePtr>>) -> bool {
        let mut state = self.state.lock();
        state.end(bytes, bytes);
        if let Some(range) = &range
            && !self.managed
            && state.spare_look(bytes, range)
        {
            self.settled.notify_all();
            return true;
        }
        if let Some(range) = range.as_ref().filter(|_| self.managed) {
            state.steps.learn(range);
        }
        self.look(book, &mut state);
        if let Some(range) = range.as_ref().filter(|_| !self.managed) {
            state.steps.learn(range);
        }
        let whole = state.conclude();
        if whole {
            self.settled.notify_all();
        }
        whole
    }

    /// Charges the headroom that growth has consumed, by `charge`, which charges ahead; or gives
    /// back what the pool does not use in its place. False when neither can be done.
    pub fn restore_headroom<E>(&self, book: &Book, charge: impl Fn(u64) -> Result<(), E>) -> bool {
        let restore = || {
            let short = self.state.lock().short();
            let charged = short == 0 || charge(short).is_ok();
            if charged {
                self.state.lock().held += short;
            }
            charged
        };
        restore() || {
            self.trim(book, STEP);
            restore()
        }
    }

    /// Looks at the pool outside of an allocation.
    pub fn refresh(&self, book: &Book) {
        if self.counted {
            self.look(book, &mut self.state.lock());
        }
    }

    fn look(&self, book: &Book, state: &mut State) {
        if state.retired {
            return;
        }
        // The attribute is read under our lock so that looks are in order; the call takes no lock
        // that a callback of ours could hold. A pool that no longer answers has nothing.
        let seen = self.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        state.unseen = 0;
        match seen {
            _ if self.managed => {}
            Some(0) => state.steps = Steps::default(),
            None => state.steps = Steps::incomplete(),
            _ => {}
        }
        let current = seen.unwrap_or(0);
        let before = state.reserved;
        let reserved = match self.managed {
            true => before.max(current).max(state.steps.bytes()),
            false => current,
        };
        if reserved != before || current != state.current() {
            let headroom = state.headroom();
            (state.reserved, state.kept) = (reserved, reserved - current);
            book.add(self.category(), reserved.saturating_sub(before));
            book.remove(self.category(), before.saturating_sub(reserved));
            book.adjust_idle(before.wrapping_sub(reserved) as i64);
            book.adjust_headroom(state.headroom().wrapping_sub(headroom) as i64);
            // Not with what is promised: the growth may be that of a call under way, which pays for
            // it with that.
            let beyond = state.beyond();
            if beyond > 0 {
                // Grown by more than was paid: only managed pools have been seen to.
                state.overrun = true;
                book.charge_over(beyond);
                book.add_idle(beyond);
                state.held += beyond;
            }
        }
        let excess = state.excess();
        state.held -= excess;
        book.uncharge_idle(excess);
        if reserved > before {
            book.note_usage();
        }
    }

    /// The pool was destroyed: what it held has no name any more. Returns the bytes that stay
    /// charged for it, as idle ones, until the caller has measured what the driver has not let go
    /// of yet.
    pub fn close(&self, book: &Book) -> u64 {
        let retired = State {
            retired: true,
            ..State::default()
        };
        let state = std::mem::replace(&mut *self.state.lock(), retired);
        book.adjust_headroom((state.headroom() as i64).wrapping_neg());
        book.remove(self.category(), state.reserved);
        book.add_idle(state.reserved);
        state.held
    }

    /// The program is about to destroy the pool: no thread asks the driver about it from here on.
    pub fn retire(&self) {
        self.state.lock().retired = true;
    }

    /// Bytes that the pool has reserved and not handed out.
    pub fn unused(&self) -> u64 {
        // Under the lock, so that it is not destroyed meanwhile.
        let state = self.state.lock();
        if state.retired {
            return 0;
        }
        let reserved = self.asked_reserved();
        let used = self.attribute(MEMPOOL_ATTR_USED_MEM_CURRENT);
        reserved.saturating_sub(used.unwrap_or(reserved))
    }

    /// Lets the driver give back up to `bytes` of the pool's unused reserve.
    pub fn trim(&self, book: &Book, bytes: u64) {
        // Under the lock, so that it is not destroyed meanwhile.
        let mut state = self.state.lock();
        if state.retired {
            return;
        }
        let keep = self.asked_reserved().saturating_sub(bytes) as usize;
        relaxed(|| cuda::cuMemPoolTrimTo(self.handle, keep));
        if self.counted {
            self.look(book, &mut state);
        }
    }
}

/// The pools of a process. Entries are never freed: programs make few, and hooks hold references
/// without counting.
#[derive(Default)]
pub struct Pools {
    by_handle: RwLock<Map<MemPool, &'static Pool>>,
    /// Handles of destroyed pools. A driver may hand them out once more: it makes a destroyed pool
    /// the current one when it is asked to (measured).
    destroyed: RwLock<Set<MemPool>>,
    /// An allocation or a free has happened since the last synchronise call.
    dirty: AtomicBool,
    /// The allocations of managed pools.
    pub lent: Lent,
    /// Bytes that destroyed pools have left in use: measured with the driver's part until they are
    /// gone.
    left_in_use: AtomicU64,
}

impl Pools {
    /// The pool with this handle, entered with what `describe` says (device, whether it counts)
    /// when it is new.
    pub fn known_or(
        &self,
        handle: MemPool,
        describe: impl FnOnce() -> (Ordinal, bool),
    ) -> &'static Pool {
        let make = || {
            let (device, counted) = describe();
            Pool::new(handle, device, counted)
        };
        self.get(handle).unwrap_or_else(|| self.enter(make()))
    }

    /// The pool with this handle, whose memory is managed and counts on `device`.
    pub fn known_managed(&self, handle: MemPool, device: Ordinal) -> &'static Pool {
        let make = || Pool {
            managed: true,
            ..Pool::new(handle, device, true)
        };
        self.get(handle).unwrap_or_else(|| self.enter(make()))
    }

    /// Enters a pool, unless another thread was faster.
    fn enter(&self, pool: Pool) -> &'static Pool {
        let mut by_handle = self.by_handle.write();
        let entry = by_handle.entry(pool.handle);
        entry.or_insert_with(|| Box::leak(Box::new(pool)))
    }

    /// The pool with this handle, if it is known.
    #[inline]
    pub fn get(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.read().get(&handle).copied()
    }

    /// The driver has made a pool with this handle.
    pub fn note_created(&self, handle: MemPool) {
        if self.is_destroyed(handle) {
            self.destroyed.write().remove(&handle);
        }
    }

    /// The driver is about to destroy the pool with this handle, or has done so.
    pub fn note_destroyed(&self, handle: MemPool) {
        self.destroyed.write().insert(handle);
    }

    /// Whether the pool with this handle is destroyed: the driver must not be asked about it.
    pub fn is_destroyed(&self, handle: MemPool) -> bool {
        self.destroyed.read().contains(&handle)
    }

    /// The pool is destroyed: its handle may come back as another one.
    pub fn forget(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.write().remove(&handle)
    }

    /// The pool lives on: its destruction failed.
    pub fn restore(&self, pool: &'static Pool) {
        pool.state.lock().retired = false;
        self.note_created(pool.handle);
        self.by_handle.write().insert(pool.handle, pool);
    }

    /// Something happened to a pool that the next synchronise call may conclude.
    #[inline]
    pub fn touch(&self) {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// Whether [`Pools::touch`] was called since the last synchronise call. `all`: this one
    /// concludes everything.
    #[inline]
    pub fn is_touched(&self, all: bool) -> bool {
        let touched = self.dirty.load(Ordering::Relaxed);
        if touched && all {
            self.dirty.store(false, Ordering::Release);
        }
        touched
    }

    /// Bytes that destroyed pools have left in use.
    pub fn left_in_use(&self) -> u64 {
        self.left_in_use.load(Ordering::Relaxed)
    }

    /// A destroyed pool has left `bytes` in use.
    pub fn note_left_in_use(&self, bytes: u64) {
        self.left_in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `bytes` have been freed, which destroyed pools may have left in use.
    pub fn note_freed(&self, bytes: u64) {
        let freed = |left: u64| Some(left.saturating_sub(bytes));
        let left = &self.left_in_use;
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, freed);
    }

    /// The pools that are `wanted`. A list of its own, so that nothing is done under the lock.
    fn select(&self, wanted: impl Fn(&Pool) -> bool) -> Vec<&'static Pool> {
        let by_handle = self.by_handle.read();
        by_handle
            .values()
            .copied()
            .filter(|pool| wanted(pool))
            .collect()
    }

    /// Looks at the pools of one device.
    pub fn refresh_on(&self, book: &Book) {
        for pool in self.select(|pool| pool.device == book.ordinal) {
            pool.refresh(book);
        }
    }

    /// Every pool.
    pub fn all(&self) -> Vec<&'static Pool> {
        self.select(|_| true)
    }

    /// Gives back what the pools of one device hold unused: the charge in any case, the memory too
    /// if `trim`. True when something came back.
    pub fn reclaim(&self, book: &Book, trim: bool) -> bool {
        let mut gave = false;
        let pools = self.select(|pool| pool.counted && pool.device == book.ordinal);
        for pool in pools {
            // A thread that is inside this pool holds its lock: it is about to settle by itself.
            let before = pool.state.try_lock().map(|state| state.held);
            if trim && before != Some(0) {
                pool.trim(book, u64::MAX);
            } else {
                pool.refresh(book);
            }
            gave |= before.is_some_and(|before| pool.state.lock().held < before);
        }
        gave
    }
}

/// The pool that `cuMemAllocAsync` takes from on a device; null until asked for.
#[derive(Default)]
pub struct CurrentPool(AtomicPtr<Pool>);

impl CurrentPool {
    /// That of `device`; `None` for one that is destroyed.
    #[inline]
    pub fn get(&self, pools: &Pools, device: Ordinal) -> Result<Option<&'static Pool>, Status> {
        match cache::read(&self.0) {
            Some(pool) => Ok(Some(pool)),
            None => self.ask(pools, device),
        }
    }

    #[cold]
    fn ask(&self, pools: &Pools, device: Ordinal) -> Result<Option<&'static Pool>, Status> {
        let handle = relaxed(|| answer(|pool| cuda::cuDeviceGetMemPool(pool, device)))?;
        if pools.is_destroyed(handle) {
            return Ok(None);
        }
        let pool = pools.known_or(handle, || (device, true));
        self.set(Some(pool));
        Ok(Some(pool))
    }

    /// It is this one; `None`: it is to be asked for again.
    pub fn set(&self, pool: Option<&'static Pool>) {
        let pool = pool.map_or(null(), std::ptr::from_ref);
        self.0.store(pool.cast_mut(), Ordering::Release);
    }
}

mod cache {
    //! Pools are leaked, so a pointer to one stays valid.
    #![allow(unsafe_code)]

    use super::{AtomicPtr, Ordering, Pool};

    #[inline]
    pub fn read(cached: &AtomicPtr<Pool>) -> Option<&'static Pool> {
        // SAFETY: only `CurrentPool::set` stores here, from a `&'static Pool`.
        unsafe { cached.load(Ordering::Acquire).as_ref() }
    }
}

/// Largest growth of a pool by a request of `bytes`.
pub fn growth(bytes: u64) -> u64 {
    round_up(bytes, STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_calls_have_paid_is_theirs_until_they_end() {
        let mut state = State {
            held: 5 * STEP,
            reserved: 2 * STEP,
            ..State::default()
        };
        assert_eq!((state.idle(), state.short()), (3 * STEP, 0));
        state.begin(STEP, STEP);
        state.begin(STEP, STEP + 1);
        assert_eq!((state.prepaid, state.large), (2 * STEP, 1));
        assert_eq!(state.idle(), STEP);
        state.end(STEP, STEP);
        assert_eq!((state.prepaid, state.large), (STEP, 1));
        state.end(STEP, STEP + 1);
        assert_eq!((state.prepaid, state.large), (0, 0));
        state.held = STEP;
        assert_eq!((state.idle(), state.short()), (0, 2 * STEP));
        state.reserved = 0;
        assert_eq!((state.idle(), state.short()), (STEP, 0));
    }

    #[test]
    fn what_is_idle_pays_for_all_of_a_call_or_for_nothing() {
        let mut state = State {
            held: 3 * STEP,
            reserved: STEP,
            ..State::default()
        };
        assert!(!state.prepay(2 * STEP + 1));
        assert_eq!((state.prepaid, state.large), (0, 0));
        assert!(state.prepay(2 * STEP));
        assert_eq!((state.prepaid, state.large), (2 * STEP, 1));
        state.charge(STEP);
        assert_eq!((state.held, state.prepaid), (4 * STEP, 3 * STEP));
        assert_eq!(state.idle(), 0);
    }

    #[test]
    fn a_pool_that_has_something_keeps_a_step_beyond_it() {
        let mut state = State {
            held: 3 * STEP,
            reserved: STEP,
            ..State::default()
        };
        assert_eq!((state.excess(), state.beyond()), (STEP, 0));
        state.prepaid = STEP;
        assert_eq!((state.excess(), state.beyond()), (0, 0));
        state.reserved = 0;
        assert_eq!((state.excess(), state.beyond()), (2 * STEP, 0));
        state.reserved = 4 * STEP;
        assert_eq!((state.excess(), state.beyond()), (0, STEP));
    }

    #[test]
    fn more_than_a_step_is_paid_for_after_a_look_at_what_has_not_been_seen() {
        let mut state = State::default();
        assert!(!state.needs_look(2 * STEP));
        state.unseen = 1;
        assert!(state.needs_look(STEP + 1));
        assert!(!state.needs_look(STEP));
    }

    #[test]
    fn who_lacks_the_headroom_waits_for_those_who_have_it() {
        let mut state = State {
            held: 2 * STEP,
            reserved: STEP,
            ..State::default()
        };
        assert!(!state.is_lent(STEP), "it is there");
        state.held = STEP;
        assert!(!state.is_lent(STEP), "nobody has it");
        state.growing = 1;
        assert!(state.is_lent(STEP));
        assert!(!state.is_lent(0));
        state.growing = 0;
        state.prepaid = STEP;
        assert!(state.is_lent(2 * STEP));
        state.held = 3 * STEP;
        assert!(!state.is_lent(2 * STEP), "more there will not be");
        state.held = STEP;
        state.reserved = 0;
        assert!(!state.is_lent(STEP), "none");
    }

    #[test]
    fn a_look_is_spared_where_the_pool_can_have_no_more() {
        let mut state = State {
            held: 4 * STEP,
            prepaid: STEP,
            reserved: 2 * STEP,
            unseen: UNSEEN - 1,
            ..State::default()
        };
        let range = 8 * STEP..10 * STEP;
        assert!(!state.is_as_seen(&range), "steps that nobody knows");
        state.steps.learn(&range);
        assert!(state.is_as_seen(&range));
        state.unseen += 1;
        assert!(!state.is_as_seen(&range), "too long ago");
        state.unseen = 0;
        state.large = 1;
        assert!(!state.is_as_seen(&range), "one that may take several steps");
        state.large = 0;
        assert!(state.spare_look(STEP, &range));
        assert!(!state.spare_look(2 * STEP, &range));
        assert_eq!(state.unseen, 1);
        state.prepaid = 0;
        assert!(!state.is_as_seen(&range), "more is held than is to be");
        assert!(!state.spare_look(STEP, &range));
        assert_eq!(state.unseen, 1);
    }

    #[test]
    fn growth_is_known_until_it_has_been_seen_to() {
        // Of no device of ours, so that no driver is asked.
        let pool = Pool::new(7, 0, false);
        *pool.state.lock() = State {
            held: 2 * STEP,
            reserved: STEP,
            ..State::default()
        };
        assert!(pool.state.lock().conclude());
        assert_eq!(pool.state.lock().growing, 0);
        pool.state.lock().reserved = 2 * STEP;
        assert!(!pool.state.lock().conclude());
        assert_eq!(pool.state.lock().growing, 1);
        drop(promise::Growth(&pool));
        assert_eq!(pool.state.lock().growing, 0);
    }
}

//! Stream-ordered memory. Its physical bytes belong to the pool, not to the pointer.
//!
//! A pool's reserved bytes grow inside an allocation, in steps of 32 MiB and never by more than the
//! request rounded up to a step (measured). They shrink inside synchronise calls, `cuMemPoolTrimTo`
//! and destruction. Only the driver knows whether an allocation makes the pool grow: that depends
//! on how the unused memory lies and on which work has ended. So the largest possible growth is
//! always charged before the call, and the pool's attribute is read after it, unless the address
//! tells that the pool has no more than before ([`steps`]).
//!
//! A pool that holds memory has one step charged beyond it, its *headroom*. The headroom pays ahead
//! for the next allocation, also when the group is full, so that memory which the pool holds can be
//! reused there. Growth that consumes the headroom must charge it anew; otherwise the growth is
//! undone and refused.
//!
//! A pool of managed memory shows the same figures, but the GPU keeps all memory that the pool has
//! ever handed out until the pool is destroyed and its last allocation freed, whatever is freed or
//! trimmed before. That memory is all steps of address space in which its allocations ever lay
//! (measured to the byte, H200, 580.159.04). So the charge of such a pool never shrinks before its
//! end. Where the group is full, memory that the pool has given back pays for its next growth: most
//! often the growth lies at the same addresses, and where it does not, it is undone.

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

/// The longest time that an allocation waits before it is refused: for allocations of other threads
/// that have the headroom, and for the work on its stream.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The number of allocations that may go without a look at the pool. If a driver grows a pool in a
/// way that was never observed, this bounds how long that stays unnoticed.
const UNSEEN: u32 = 63;

#[derive(Default)]
struct State {
    /// Bytes that are charged for this pool.
    held: u64,
    /// Bytes of `held` that are promised to calls under way.
    prepaid: u64,
    /// The number of calls that have made the pool grow and do not know yet whether the growth may
    /// stay.
    growing: u32,
    /// Bytes that the pool had reserved when it was last looked at; for a managed pool, the most
    /// that the GPU may hold of it.
    reserved: u64,
    /// Bytes of `reserved` that a managed pool has given back and the GPU has kept.
    kept: u64,
    /// The pool has grown by more than was paid.
    overrun: bool,
    /// The number of allocations since the pool was last looked at.
    unseen: u32,
    /// The number of calls under way that have paid for more than a step.
    large: u32,
    /// The steps of address space in which the pool's memory lies.
    steps: Steps,
    /// The pool is destroyed or about to be: the driver must not be asked about it.
    retired: bool,
}

impl State {
    /// Returns the bytes that the driver's attribute gives as reserved.
    fn current(&self) -> u64 {
        self.reserved - self.kept
    }

    fn idle(&self) -> u64 {
        self.held.saturating_sub(self.reserved + self.prepaid)
    }

    /// Returns the bytes that can pay for growth into memory that the pool has had before.
    fn credit(&self) -> u64 {
        self.held.saturating_sub(self.current() + self.prepaid)
    }

    /// Returns the bytes that are to be charged beyond the reserved ones, whether promised to a
    /// call under way or not.
    fn headroom(&self) -> u64 {
        if self.current() > 0 { STEP } else { 0 }
    }

    /// Returns the bytes that are missing from the headroom.
    fn short(&self) -> u64 {
        (self.reserved + self.headroom()).saturating_sub(self.held)
    }

    /// Returns the idle bytes beyond the headroom.
    fn excess(&self) -> u64 {
        self.idle().saturating_sub(self.headroom())
    }

    /// Returns the bytes that the pool has and that are not charged.
    fn beyond(&self) -> u64 {
        self.reserved.saturating_sub(self.held)
    }

    /// Returns whether the pool must be looked at before `bytes` are paid for: for more than a
    /// step, the headroom may be all that pays for growth that has not been seen.
    #[inline]
    fn needs_look(&self, bytes: u64) -> bool {
        bytes > STEP && self.unseen > 0
    }

    /// Returns whether calls under way have the part of the headroom that could pay for `bytes`.
    fn is_lent(&self, bytes: u64) -> bool {
        (self.prepaid > 0 || self.growing > 0) && self.idle() < bytes.min(self.headroom())
    }

    /// Returns whether the pool, which has just handed out `range`, is known to have no more memory
    /// than when it was last looked at, and its whole headroom.
    #[inline]
    fn is_as_seen(&self, range: &Range<DevicePtr>) -> bool {
        self.large == 0
            && self.unseen < UNSEEN
            && self.held - self.reserved == STEP + self.prepaid
            && self.steps.cover(range, self.reserved)
    }

    /// Returns whether a call that has paid `bytes` and was given `range` can do without a look at
    /// the pool.
    #[inline]
    fn spare_look(&mut self, bytes: u64, range: &Range<DevicePtr>) -> bool {
        let spared = bytes == STEP && self.is_as_seen(range);
        self.unseen += u32::from(spared);
        spared
    }

    /// Returns, after a look, whether the pool has its headroom. Otherwise the pool has grown, and
    /// the caller must charge or undo that.
    fn conclude(&mut self) -> bool {
        let whole = self.short() == 0;
        self.growing += u32::from(!whole);
        whole
    }

    /// Records a call for which `paid` bytes have been found, of the `bytes` by which the pool may
    /// grow.
    fn begin(&mut self, paid: u64, bytes: u64) {
        self.prepaid += paid;
        self.large += u32::from(bytes > STEP);
    }

    /// Pays for `bytes` out of the idle bytes: all or nothing.
    #[inline]
    fn prepay(&mut self, bytes: u64) -> bool {
        let enough = self.idle() >= bytes;
        if enough {
            self.begin(bytes, bytes);
        }
        enough
    }

    /// Adds bytes that have been charged for a call under way.
    fn charge(&mut self, bytes: u64) {
        self.held += bytes;
        self.prepaid += bytes;
    }

    fn end(&mut self, paid: u64, bytes: u64) {
        self.prepaid = self.prepaid.saturating_sub(paid);
        self.large = self.large.saturating_sub(u32::from(bytes > STEP));
    }
}

/// A memory pool. Its memory lies on a device (`counted`) or elsewhere.
pub struct Pool {
    handle: MemPool,
    pub device: Ordinal,
    /// Whether the pool takes device memory that this process is charged for. Host pools and
    /// imported pools do not.
    pub counted: bool,
    /// Whether the pool's memory is managed.
    pub managed: bool,
    state: Mutex<State>,
    /// Notified when a call under way has ended.
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

    /// Returns the bytes that the pool has reserved according to the driver; 0 where the driver
    /// does not tell.
    fn asked_reserved(&self) -> u64 {
        self.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            .unwrap_or(0)
    }

    /// Pays for a growth of `bytes` out of the idle bytes. False when these are too few: use
    /// [`Pool::pay`] then.
    #[inline]
    pub fn prepay(&self, book: &Book, bytes: u64) -> bool {
        let mut state = self.state.lock();
        self.look_for(book, &mut state, bytes);
        state.prepay(bytes)
    }

    /// Pays for a growth of `bytes` out of memory that a managed pool has given back, as the pool
    /// may grow into that. False when it is too little.
    pub fn borrow(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let enough = self.managed && state.credit() >= bytes;
        if enough {
            state.begin(bytes, bytes);
        }
        enough
    }

    /// Returns whether the pool has grown by more than was paid since this was last asked.
    pub fn has_overrun(&self) -> bool {
        std::mem::take(&mut self.state.lock().overrun)
    }

    #[inline]
    fn look_for(&self, book: &Book, state: &mut State, bytes: u64) {
        if state.needs_look(bytes) {
            self.look(book, state);
        }
    }

    /// Pays for a growth of `bytes` out of the idle bytes, and for the rest by `charge`, which
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

    /// Takes over `bytes` that were charged ahead for a call before its pool was known.
    pub fn adopt(&self, bytes: u64) -> Promise<'_> {
        let mut state = self.state.lock();
        state.begin(0, bytes);
        state.charge(bytes);
        Promise::new(self, bytes)
    }

    /// Ends a call that had paid `bytes` ahead and was given `range`, if any: looks at the pool,
    /// unless the range shows that this is not needed. True when the pool has its headroom.
    /// Otherwise the pool has grown, and the caller handles that under a [`promise::Growth`].
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

    /// Charges the headroom that growth has consumed, by `charge`, which charges ahead; where that
    /// fails, trims the pool instead. False when neither restores the headroom.
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

    /// Reads how much the pool has reserved, outside of an allocation.
    pub fn refresh(&self, book: &Book) {
        if self.counted {
            self.look(book, &mut self.state.lock());
        }
    }

    fn look(&self, book: &Book, state: &mut State) {
        if state.retired {
            return;
        }
        // The attribute is read under the lock so that looks are in order. The driver takes no lock
        // in this call that a callback of gpulimit could hold. A pool that no longer answers is
        // taken to be empty.
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
            // Bytes that are promised do not count: the growth may be that of a call under way,
            // which pays for the growth with them.
            let beyond = state.beyond();
            if beyond > 0 {
                // Grown by more than was paid: only managed pools were observed to do so.
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

    /// Records that the pool was destroyed: its memory has no name any more. Returns the bytes that
    /// stay charged, as idle ones, until the caller has measured what the driver has not freed yet.
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

    /// Records that the program is about to destroy the pool: no thread asks the driver about the
    /// pool from here on.
    pub fn retire(&self) {
        self.state.lock().retired = true;
    }

    /// Returns the bytes that the pool has reserved and not handed out.
    pub fn unused(&self) -> u64 {
        // Under the lock, so that the pool is not destroyed meanwhile.
        let state = self.state.lock();
        if state.retired {
            return 0;
        }
        let reserved = self.asked_reserved();
        let used = self.attribute(MEMPOOL_ATTR_USED_MEM_CURRENT);
        reserved.saturating_sub(used.unwrap_or(reserved))
    }

    /// Lets the driver free up to `bytes` of the pool's unused memory.
    pub fn trim(&self, book: &Book, bytes: u64) {
        // Under the lock, so that the pool is not destroyed meanwhile.
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

/// The pools of a process. Entries are never freed: programs make few pools, and hooks hold
/// references without counting them.
#[derive(Default)]
pub struct Pools {
    by_handle: RwLock<Map<MemPool, &'static Pool>>,
    /// The handles of destroyed pools. The driver may still hand them out: it makes a destroyed
    /// pool the current one when the program asks for that (measured).
    destroyed: RwLock<Set<MemPool>>,
    /// An allocation or a free has happened since the last synchronise call.
    dirty: AtomicBool,
    /// The allocations of managed pools.
    pub lent: Lent,
    /// Bytes that were still in use when their pools were destroyed. They are measured with the
    /// driver's part until they are freed.
    left_in_use: AtomicU64,
}

impl Pools {
    /// Returns the pool with this handle. A new pool is recorded with what `describe` returns: its
    /// device, and whether it counts.
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

    /// Returns the pool with this handle, whose memory is managed and counts on `device`.
    pub fn known_managed(&self, handle: MemPool, device: Ordinal) -> &'static Pool {
        let make = || Pool {
            managed: true,
            ..Pool::new(handle, device, true)
        };
        self.get(handle).unwrap_or_else(|| self.enter(make()))
    }

    /// Records a pool, unless another thread has done so meanwhile.
    fn enter(&self, pool: Pool) -> &'static Pool {
        let mut by_handle = self.by_handle.write();
        let entry = by_handle.entry(pool.handle);
        entry.or_insert_with(|| Box::leak(Box::new(pool)))
    }

    /// Returns the pool with this handle, if it is known.
    #[inline]
    pub fn get(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.read().get(&handle).copied()
    }

    /// Records that the driver has made a pool with this handle.
    pub fn note_created(&self, handle: MemPool) {
        if self.is_destroyed(handle) {
            self.destroyed.write().remove(&handle);
        }
    }

    /// Records that the driver is about to destroy the pool with this handle, or has done so.
    pub fn note_destroyed(&self, handle: MemPool) {
        self.destroyed.write().insert(handle);
    }

    /// Returns whether the pool with this handle is destroyed: the driver must not be asked about
    /// it.
    pub fn is_destroyed(&self, handle: MemPool) -> bool {
        self.destroyed.read().contains(&handle)
    }

    /// Removes a pool that is being destroyed: its handle may come back as another pool.
    pub fn forget(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.write().remove(&handle)
    }

    /// Puts back a pool whose destruction failed.
    pub fn restore(&self, pool: &'static Pool) {
        pool.state.lock().retired = false;
        self.note_created(pool.handle);
        self.by_handle.write().insert(pool.handle, pool);
    }

    /// Notes an allocation or a free, after which the next synchronise call may shrink a pool.
    #[inline]
    pub fn touch(&self) {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// Returns whether [`Pools::touch`] was called since the last synchronise call. `all`: that
    /// call has waited for all work, so the note is cleared.
    #[inline]
    pub fn is_touched(&self, all: bool) -> bool {
        let touched = self.dirty.load(Ordering::Relaxed);
        if touched && all {
            self.dirty.store(false, Ordering::Release);
        }
        touched
    }

    /// Returns the bytes that destroyed pools have left in use.
    pub fn left_in_use(&self) -> u64 {
        self.left_in_use.load(Ordering::Relaxed)
    }

    /// Adds `bytes` that a destroyed pool has left in use.
    pub fn note_left_in_use(&self, bytes: u64) {
        self.left_in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes` that have been freed, which destroyed pools may have left in use.
    pub fn note_freed(&self, bytes: u64) {
        let freed = |left: u64| Some(left.saturating_sub(bytes));
        let left = &self.left_in_use;
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, freed);
    }

    /// Returns the pools for which `wanted` is true, as a list of its own, so that the lock is not
    /// held while they are used.
    fn select(&self, wanted: impl Fn(&Pool) -> bool) -> Vec<&'static Pool> {
        let by_handle = self.by_handle.read();
        by_handle
            .values()
            .copied()
            .filter(|pool| wanted(pool))
            .collect()
    }

    /// Reads how much the pools of one device have reserved.
    pub fn refresh_on(&self, book: &Book) {
        for pool in self.select(|pool| pool.device == book.ordinal) {
            pool.refresh(book);
        }
    }

    /// Returns every pool.
    pub fn all(&self) -> Vec<&'static Pool> {
        self.select(|_| true)
    }

    /// Gives back what the pools of one device hold unused: the charge in any case, the memory too
    /// if `trim`. True when the charge of a pool has shrunk.
    pub fn reclaim(&self, book: &Book, trim: bool) -> bool {
        let mut gave = false;
        let pools = self.select(|pool| pool.counted && pool.device == book.ordinal);
        for pool in pools {
            // A thread that is using this pool holds its lock, and settles the pool by itself.
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

/// The pool that `cuMemAllocAsync` takes memory from on a device; null until the driver was asked.
#[derive(Default)]
pub struct CurrentPool(AtomicPtr<Pool>);

impl CurrentPool {
    /// Returns the current pool of `device`; `None` where it is destroyed.
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

    /// Sets the current pool; with `None` the driver is asked at the next use.
    pub fn set(&self, pool: Option<&'static Pool>) {
        let pool = pool.map_or(null(), std::ptr::from_ref);
        self.0.store(pool.cast_mut(), Ordering::Release);
    }
}

mod cache {
    //! A pool is leaked when it is recorded, so a pointer to it stays valid.
    #![allow(unsafe_code)]

    use super::{AtomicPtr, Ordering, Pool};

    #[inline]
    pub fn read(cached: &AtomicPtr<Pool>) -> Option<&'static Pool> {
        // SAFETY: only `CurrentPool::set` stores here, from a `&'static Pool`.
        unsafe { cached.load(Ordering::Acquire).as_ref() }
    }
}

/// Returns the largest growth of a pool by a request of `bytes`.
pub fn growth(bytes: u64) -> u64 {
    round_up(bytes, STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paid_bytes_are_promised_until_the_call_ends() {
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
    fn idle_bytes_pay_for_a_whole_call_or_not_at_all() {
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
    fn a_pool_with_memory_keeps_a_step_beyond_it() {
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
    fn more_than_a_step_is_paid_for_after_a_look() {
        let mut state = State::default();
        assert!(!state.needs_look(2 * STEP));
        state.unseen = 1;
        assert!(state.needs_look(STEP + 1));
        assert!(!state.needs_look(STEP));
    }

    #[test]
    fn a_call_without_headroom_waits_for_those_that_have_it() {
        let mut state = State {
            held: 2 * STEP,
            reserved: STEP,
            ..State::default()
        };
        assert!(!state.is_lent(STEP), "the headroom is idle");
        state.held = STEP;
        assert!(!state.is_lent(STEP), "no call has the headroom");
        state.growing = 1;
        assert!(state.is_lent(STEP));
        assert!(!state.is_lent(0));
        state.growing = 0;
        state.prepaid = STEP;
        assert!(state.is_lent(2 * STEP));
        state.held = 3 * STEP;
        assert!(!state.is_lent(2 * STEP), "no call can give back more");
        state.held = STEP;
        state.reserved = 0;
        assert!(!state.is_lent(STEP), "none");
    }

    #[test]
    fn no_look_is_needed_where_the_pool_cannot_have_grown() {
        let mut state = State {
            held: 4 * STEP,
            prepaid: STEP,
            reserved: 2 * STEP,
            unseen: UNSEEN - 1,
            ..State::default()
        };
        let range = 8 * STEP..10 * STEP;
        assert!(!state.is_as_seen(&range), "unknown steps");
        state.steps.learn(&range);
        assert!(state.is_as_seen(&range));
        state.unseen += 1;
        assert!(!state.is_as_seen(&range), "the last look was too long ago");
        state.unseen = 0;
        state.large = 1;
        assert!(!state.is_as_seen(&range), "a call may take several steps");
        state.large = 0;
        assert!(state.spare_look(STEP, &range));
        assert!(!state.spare_look(2 * STEP, &range));
        assert_eq!(state.unseen, 1);
        state.prepaid = 0;
        assert!(!state.is_as_seen(&range), "more is held than the headroom");
        assert!(!state.spare_look(STEP, &range));
        assert_eq!(state.unseen, 1);
    }

    #[test]
    fn growth_counts_until_it_is_handled() {
        // A pool that does not count, so that the driver is not asked.
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

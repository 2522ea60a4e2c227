//! Memory pools for stream-ordered allocation (`cuMemAllocAsync`). The physical memory belongs to
//! the pool, so bytes are charged for pools.
//!
//! The reserved bytes of a pool grow inside an allocation, in steps of 32 MiB. The growth is at
//! most the requested bytes rounded up to a step (measured). Only the driver knows whether an
//! allocation makes the pool grow. So the largest possible growth is charged before the call. The
//! reserved bytes are read after the call, unless the returned address shows that the pool has not
//! grown ([`steps`]).
//!
//! The *headroom* of the device's pools pays in advance for the next allocation, so a full group
//! does not block reuse of their memory ([`headroom`]). Growth uses it up. If the group refuses a
//! new headroom, the growth is undone and the allocation is refused.
//!
//! The GPU keeps all memory that a managed pool has ever handed out. The memory is freed when the
//! pool is destroyed and its last allocation is freed (measured). So the charge of a managed pool
//! shrinks only at the pool's end. In a full group, the charge for memory that the pool has given
//! back pays for its next growth. Growth at new addresses is undone.

pub mod headroom;
pub mod lent;
pub mod promise;
mod steps;
mod ticket;

use std::ops::Range;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpulimit_base::obstacle::Obstacle;
use gpulimit_ledger::Category;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::book::Book;
use super::reserve;
use super::rounding::round_up;
use crate::abi::{
    Device as Ordinal, DevicePtr, MEMPOOL_ATTR_RESERVED_MEM_CURRENT, MEMPOOL_ATTR_USED_MEM_CURRENT,
    MemPool, Status,
};
use crate::account::maps::{Map, Set};
use crate::clock::monotonic_ms;
use crate::driver::capture::relaxed;
use crate::driver::{answer, cuda, inside};
use headroom::Calls;
use lent::Lent;
use promise::Promise;
use steps::Steps;
use ticket::{Taken, Ticket};

/// The reserved bytes of a pool grow in multiples of this many bytes (measured).
pub const STEP: u64 = 32 << 20;

/// Returns the longest time that a stream-ordered allocation waits for other threads' allocations
/// and for its stream before it is refused.
pub fn patience() -> Duration {
    match inside::is_nested() {
        true => Duration::ZERO,
        false => Duration::from_secs(2),
    }
}

/// The most allocations in a row after which the pool's reserved bytes are not read. The bound
/// limits unexpected growth.
const UNSEEN: u32 = 255;

#[derive(Default)]
struct State {
    /// Bytes of the device's headroom that the pool has: for calls under way, and for growth that
    /// was not read yet.
    lent: u64,
    /// Bytes that are promised to driver calls under way. They are part of `lent`, unless growth
    /// was read during the call, or memory that a managed pool has given back pays.
    promised: u64,
    /// The number of calls under way that have taken headroom from the device.
    takers: u32,
    /// The pool's reserved bytes when they were last read. For a managed pool, the most bytes that
    /// the GPU may keep.
    reserved: u64,
    /// Bytes of `reserved` that a managed pool has given back and that the GPU still keeps.
    kept: u64,
    /// Whether the pool has grown by more bytes than were charged in advance.
    overrun: bool,
    /// The number of allocations since the pool's reserved bytes were last read.
    unseen: u32,
    /// The number of calls under way that have charged a growth of more than one step (32 MiB).
    large: u32,
    /// The steps of address space in which allocations of the pool have lain.
    steps: Steps,
    /// Whether the pool is destroyed or about to be destroyed. The driver must then not be asked
    /// about it.
    retired: bool,
}

impl State {
    /// Returns the reserved bytes of the pool as the driver last reported them.
    fn current(&self) -> u64 {
        self.reserved - self.kept
    }

    /// Returns the bytes of headroom that the pool has and that no call under way uses.
    fn idle(&self) -> u64 {
        self.lent.saturating_sub(self.promised)
    }

    /// Returns the bytes by which a managed pool can grow without a new charge.
    fn credit(&self) -> u64 {
        (self.lent + self.kept).saturating_sub(self.promised)
    }

    /// Returns whether the reserved bytes must be read before `bytes` are charged. The pool may
    /// have grown into its step unnoticed.
    #[inline]
    fn needs_look(&self, bytes: u64) -> bool {
        bytes > STEP && self.unseen > 0
    }

    /// Returns whether `range`, the latest allocation, shows that the pool has not grown since its
    /// reserved bytes were read.
    #[inline]
    fn is_as_seen(&self, range: &Range<DevicePtr>) -> bool {
        self.large == 0
            && self.unseen < UNSEEN
            && self.lent == STEP + self.promised
            && self.steps.cover(range, self.reserved)
    }

    /// Returns whether the pool's reserved bytes need not be read after a call. `range`: the
    /// addresses that the call got. The pool then keeps the call's step.
    #[inline]
    fn spare_look(&mut self, bytes: u64, range: &Range<DevicePtr>) -> bool {
        let spared = bytes == STEP && self.is_as_seen(range);
        self.unseen += u32::from(spared);
        spared
    }

    /// Records the beginning of a call that may make the pool grow by `bytes`. Promises `paid` of
    /// them to the call.
    fn begin(&mut self, paid: u64, bytes: u64) {
        self.promised += paid;
        self.large += u32::from(bytes > STEP);
    }

    /// Records the beginning of a call like [`State::begin`]. Takes what the pool lacks out of
    /// `headroom`, but not less than `least`. Returns the bytes that are promised.
    #[cold]
    #[inline(never)]
    fn take(
        &mut self,
        headroom: &mut reserve::State<Calls>,
        bytes: u64,
        least: u64,
    ) -> Option<u64> {
        let missing = bytes.saturating_sub(self.idle());
        if headroom.idle() + bytes - missing < least {
            return None;
        }
        self.lent += headroom.promise(missing);
        headroom.own.begin(monotonic_ms);
        self.takers += 1;
        let paid = self.idle().min(bytes);
        self.begin(paid, bytes);
        Some(paid)
    }

    fn end(&mut self, paid: u64, bytes: u64) {
        self.promised = self.promised.saturating_sub(paid);
        self.large = self.large.saturating_sub(u32::from(bytes > STEP));
    }

    /// Ends the calls that have taken headroom, once no call is under way.
    #[cold]
    #[inline(never)]
    fn end_takers(&mut self, book: &Book) {
        if self.promised == 0 {
            let mut headroom = book.pools.change(book);
            headroom.own.end(std::mem::take(&mut self.takers));
        }
    }
}

/// A memory pool on `device`. If `counted` is true, this process is charged for the pool's memory.
pub struct Pool {
    handle: AtomicUsize,
    pub device: Ordinal,
    /// Whether this process is charged for the pool's memory. False for pools of host memory and
    /// for pools imported from other processes.
    pub counted: bool,
    /// Whether the pool hands out managed memory.
    pub managed: bool,
    /// Whether another process has made the pool.
    imported: bool,
    /// How often the program has exported the pool.
    exports: AtomicU64,
    /// Whether the program has made the pool a device's current pool.
    was_current: AtomicBool,
    ticket: Ticket,
    /// See [`Pool::lock`].
    state: Mutex<State>,
}

impl Pool {
    fn new(handle: MemPool, device: Ordinal, counted: bool) -> Self {
        let pool = Pool {
            handle: AtomicUsize::new(handle),
            device,
            counted,
            managed: false,
            imported: false,
            exports: AtomicU64::new(0),
            was_current: AtomicBool::new(false),
            ticket: Ticket::new(),
            state: Mutex::default(),
        };
        if counted && pool.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != Some(0) {
            pool.state.lock().steps = Steps::incomplete();
        }
        pool
    }

    /// Locks the state. A call that has the ticket counts as any other from then on.
    #[inline(never)]
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        match self.ticket.take_back() {
            Taken::Nothing => {}
            Taken::Back { unseen } => state.unseen = unseen,
            Taken::FromCall { unseen } => {
                state.unseen = unseen;
                state.begin(STEP, STEP);
            }
        }
        state
    }

    fn handle(&self) -> MemPool {
        self.handle.load(Ordering::Relaxed)
    }

    /// Records that the pool becomes a device's current pool.
    pub fn note_current(&self) {
        self.was_current.store(true, Ordering::Release);
    }

    /// Returns whether `device` may have access to another device if it has access to the pool.
    /// Nothing tells on which device an imported pool lies.
    pub fn may_be_of_other(&self, device: Ordinal) -> bool {
        self.imported || (self.counted && self.device != device)
    }

    /// Returns why this process must not be suspended while it has the pool or memory of it.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match (self.managed, self.imported) {
            (true, _) => Some(Obstacle::ManagedMemory),
            (_, true) => Some(Obstacle::ImportedPool),
            _ => None,
        }
    }

    /// Counts an export of the pool.
    pub fn exported(&self) {
        self.exports.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an export no more that the driver has refused. Returns false if the pool was
    /// destroyed meanwhile, and its exports have ended.
    pub fn unexported(&self) -> bool {
        let less = |count: u64| count.checked_sub(1);
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.exports.fetch_update(order, failed, less).is_ok()
    }

    /// Returns whether the pool is exported and memory of it is in use, or may be.
    pub fn is_exported_in_use(&self) -> bool {
        let state = self.lock();
        self.exports.load(Ordering::Acquire) > 0
            && !state.retired
            && self.attribute(MEMPOOL_ATTR_USED_MEM_CURRENT) != Some(0)
    }

    /// Ends the exports of a destroyed pool, and returns their number.
    pub fn take_exports(&self) -> u64 {
        self.exports.swap(0, Ordering::AcqRel)
    }

    fn category(&self) -> Category {
        match self.managed {
            true => Category::Managed,
            false => Category::Pools,
        }
    }

    #[inline]
    fn attribute(&self, attribute: i32) -> Option<u64> {
        let ask = |bytes| cuda::cuMemPoolGetAttribute(self.handle(), attribute, bytes);
        inside::closed(|| relaxed(|| answer(ask)).ok())
    }

    /// Returns the reserved bytes of the pool according to the driver; 0 if the driver fails.
    fn asked_reserved(&self) -> u64 {
        self.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            .unwrap_or(0)
    }

    /// Promises the pool's step to a call that takes no lock. Returns false if it is not there.
    #[inline(always)]
    pub fn begin_at_once(&self) -> bool {
        self.ticket.begin()
    }

    /// Ends such a call, which has got `range`. Returns false if it has to be settled.
    #[inline(always)]
    pub fn end_at_once(&self, range: &Range<DevicePtr>) -> bool {
        self.ticket.end(range, UNSEEN)
    }

    /// Promises `bytes` to a call, out of the pool's step or the device's headroom. Returns false
    /// if too few are left; then use [`Pool::pay`].
    pub fn prepay(&self, book: &Book, bytes: u64) -> bool {
        (bytes == STEP && self.begin_at_once()) || self.prepay_locked(book, bytes)
    }

    #[inline(never)]
    fn prepay_locked(&self, book: &Book, bytes: u64) -> bool {
        let mut state = self.lock();
        self.look_for(book, &mut state, bytes);
        if state.idle() >= bytes {
            state.begin(bytes, bytes);
            return true;
        }
        let headroom = &mut book.pools.change(book);
        state.take(headroom, bytes, bytes).is_some()
    }

    /// Lets a managed pool grow by `bytes` out of its charge for returned memory. Returns false if
    /// this charge is too small.
    pub fn borrow(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let enough = self.managed && state.credit() >= bytes;
        if enough {
            state.begin(bytes, bytes);
        }
        enough
    }

    /// Returns whether the pool has outgrown its charge since the last call of this function.
    pub fn has_overrun(&self) -> bool {
        std::mem::take(&mut self.lock().overrun)
    }

    #[inline]
    fn look_for(&self, book: &Book, state: &mut State, bytes: u64) {
        if state.needs_look(bytes) {
            self.look(book, state);
        }
    }

    /// Promises `bytes` to a call: first `ahead` bytes that [`Pools::await_headroom`] has lent,
    /// then what the pool and the device have left, then bytes that `charge` charges.
    pub fn pay<E>(
        &self,
        book: &Book,
        bytes: u64,
        ahead: u64,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let paid = {
            let mut state = self.lock();
            self.look_for(book, &mut state, bytes);
            state.lent += ahead;
            let headroom = &mut book.pools.change(book);
            state.take(headroom, bytes, 0).unwrap_or(0)
        };
        let promise = Promise::partly(self, book, paid, bytes);
        let rest = bytes - paid;
        if rest > 0 {
            charge(rest)?;
            self.charged(book, &mut self.lock(), rest);
        }
        promise.stays();
        Ok(())
    }

    /// Promises `bytes` to a call for which they were charged.
    fn charged(&self, book: &Book, state: &mut State, bytes: u64) {
        book.pools.change(book).charge(bytes);
        state.lent += bytes;
        state.promised += bytes;
    }

    /// Takes over `bytes` that were charged for a call before its pool was known.
    pub fn adopt<'a>(&'a self, book: &'a Book, bytes: u64) -> Promise<'a> {
        let mut state = self.lock();
        state.begin(0, bytes);
        self.charged(book, &mut state, bytes);
        Promise::new(self, book, bytes)
    }

    /// Ends a call for which `bytes` were charged. Reads the pool's reserved bytes, unless `range`
    /// shows that they are unchanged.
    ///
    /// Returns true if the whole headroom is charged. Otherwise the caller charges or undoes the
    /// growth under a [`promise::Growth`].
    fn settle(&self, book: &Book, bytes: u64, range: Option<Range<DevicePtr>>) -> bool {
        let ends = |range| bytes == STEP && self.end_at_once(range);
        range.as_ref().is_some_and(ends) || self.settle_locked(book, bytes, range)
    }

    #[inline(never)]
    fn settle_locked(&self, book: &Book, bytes: u64, range: Option<Range<DevicePtr>>) -> bool {
        let mut state = self.lock();
        state.end(bytes, bytes);
        if state.takers > 0 {
            state.end_takers(book);
        }
        if let Some(range) = &range
            && !self.managed
            && !book.pools.is_awaited()
            && state.spare_look(bytes, range)
        {
            if state.promised == 0 {
                self.ticket.put(state.unseen, range);
            }
            return true;
        }
        self.settle_by_look(book, &mut state, range)
    }

    /// Does the work of [`Pool::settle`] where the pool has to be looked at.
    #[cold]
    #[inline(never)]
    fn settle_by_look(
        &self,
        book: &Book,
        state: &mut State,
        range: Option<Range<DevicePtr>>,
    ) -> bool {
        if let Some(range) = range.as_ref().filter(|_| self.managed) {
            state.steps.learn(range);
        }
        self.look(book, state);
        if let Some(range) = range.as_ref().filter(|_| !self.managed) {
            state.steps.learn(range);
        }
        let mut headroom = book.pools.change(book);
        let whole = headroom.short() == 0;
        headroom.own.growing += u32::from(!whole);
        whole
    }

    /// Ends a promise to a call that was not made or has panicked.
    fn abandon(&self, book: &Book, paid: u64, bytes: u64) {
        let mut state = self.lock();
        state.end(paid, bytes);
        // After a panic the pool may have grown. It then keeps the bytes until it is looked at.
        if !std::thread::panicking() {
            self.give_back(book, &mut state);
        }
        state.end_takers(book);
    }

    /// Charges a new headroom with `charge`. After a refusal, trims the pool and tries again.
    /// Returns false after two refusals.
    pub fn restore_headroom<E>(&self, book: &Book, charge: impl Fn(u64) -> Result<(), E>) -> bool {
        let restore = || {
            let short = book.pools.change(book).short();
            let charged = short == 0 || charge(short).is_ok();
            if charged {
                book.pools.change(book).held += short;
            }
            charged
        };
        restore() || {
            self.trim(book, STEP);
            restore()
        }
    }

    /// Reads the pool's reserved bytes. Call outside of an allocation. Returns the bytes uncharged.
    pub fn refresh(&self, book: &Book) -> u64 {
        match self.counted && !inside::is_closed() {
            true => self.look(book, &mut self.lock()),
            false => 0,
        }
    }

    fn look(&self, book: &Book, state: &mut State) -> u64 {
        if state.retired {
            // A call that was under way when the pool was destroyed has ended.
            return match state.reserved {
                0 => self.give_back(book, state),
                _ => 0,
            };
        }
        // The lock keeps readings in order. No deadlock: the query takes no lock that the driver
        // holds while it calls gpulimit.
        let seen = self.attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        state.unseen = 0;
        match seen {
            _ if self.managed => {}
            Some(0) => state.steps = Steps::default(),
            None => state.steps = Steps::incomplete(),
            _ => {}
        }
        if state.steps.bytes() == 0 {
            self.ticket.forget_steps();
        }
        // If the driver fails, the pool counts as empty.
        let current = seen.unwrap_or(0);
        let before = state.reserved;
        // The GPU keeps every step in which a managed pool's allocations ever lay (measured).
        let reserved = match self.managed {
            true => before.max(current).max(state.steps.bytes()),
            false => current,
        };
        if reserved != before || current != state.current() {
            self.record(book, state, reserved, current);
        }
        self.give_back(book, state)
    }

    /// Records the pool's figures. Headroom pays for growth, first what the pool has of it.
    fn record(&self, book: &Book, state: &mut State, reserved: u64, current: u64) {
        let before = state.reserved;
        let grown = reserved.saturating_sub(before);
        let shrunk = before.saturating_sub(reserved);
        let mut headroom = book.pools.change(book);
        state.lent += headroom.promise(grown.saturating_sub(state.lent));
        let paid = state.lent.min(grown);
        headroom.release(paid);
        headroom.used = (headroom.used + reserved).saturating_sub(before);
        headroom.reserve(state.current(), current);
        // The pool may have grown by more bytes than were charged in advance. This was observed
        // only with managed pools.
        state.overrun |= grown > paid;
        headroom.cover(grown - paid);
        book.add(self.category(), grown);
        book.remove(self.category(), shrunk);
        state.lent -= paid;
        (state.reserved, state.kept) = (reserved, reserved - current);
    }

    /// Gives headroom back that no call under way uses, unless growth may be unread. Uncharges what
    /// the device does not need, and returns the number of these bytes.
    fn give_back(&self, book: &Book, state: &mut State) -> u64 {
        let idle = match state.unseen {
            0 => state.idle(),
            _ => 0,
        };
        state.lent -= idle;
        let mut headroom = book.pools.change(book);
        headroom.release(idle);
        headroom.give_back_steps(false, monotonic_ms)
    }

    /// Records that the pool was destroyed. Returns the bytes that stay charged until the caller
    /// has measured the remaining memory; the caller then uncharges excess headroom, too.
    pub fn close(&self, book: &Book) -> u64 {
        let mut state = self.lock();
        let retired = State {
            retired: true,
            promised: state.promised,
            ..State::default()
        };
        let state = std::mem::replace(&mut *state, retired);
        let mut headroom = book.pools.change(book);
        headroom.release(state.lent);
        headroom.own.end(state.takers);
        headroom.reserve(state.current(), 0);
        headroom.used = headroom.used.saturating_sub(state.reserved);
        headroom.held = headroom.held.saturating_sub(state.reserved);
        book.remove(self.category(), state.reserved);
        state.reserved
    }

    /// Records that the program is about to destroy the pool. From now on no thread asks the driver
    /// about it.
    pub fn retire(&self) {
        self.lock().retired = true;
    }

    /// Returns the reserved bytes of the pool that no allocation uses.
    pub fn unused(&self) -> u64 {
        // The lock is held during the query, so that the program cannot destroy the pool meanwhile.
        let state = self.lock();
        if state.retired {
            return 0;
        }
        let reserved = self.asked_reserved();
        let used = self.attribute(MEMPOOL_ATTR_USED_MEM_CURRENT);
        reserved.saturating_sub(used.unwrap_or(reserved))
    }

    /// Returns whether the pool has memory or headroom.
    fn has_memory(&self) -> bool {
        let state = self.lock();
        state.reserved + state.lent > 0
    }

    /// Lets the driver free up to `bytes` of the pool's unused memory. Returns the bytes uncharged.
    pub fn trim(&self, book: &Book, bytes: u64) -> u64 {
        // The lock is held during the query, so that the program cannot destroy the pool meanwhile.
        let mut state = self.lock();
        if state.retired {
            return 0;
        }
        let keep = self.asked_reserved().saturating_sub(bytes) as usize;
        inside::closed(|| relaxed(|| cuda::cuMemPoolTrimTo(self.handle(), keep)));
        match self.counted {
            true => self.look(book, &mut state),
            false => 0,
        }
    }
}

/// The memory pools of a process. Records of pools are never freed, because hooks hold references
/// to them. Those of destroyed pools are used again for other pools of the same kind.
#[derive(Default)]
pub struct Pools {
    by_handle: RwLock<Map<MemPool, &'static Pool>>,
    /// The records of destroyed pools.
    unused: Mutex<Vec<&'static Pool>>,
    /// The handles of pools that are being destroyed, and of destroyed and unknown pools that the
    /// driver may return as a current pool (measured).
    destroyed: RwLock<Set<MemPool>>,
    /// Whether a pool allocation or free has happened since the last synchronise call.
    dirty: AtomicBool,
    /// The allocations of managed and of imported pools.
    pub lent: Lent,
    /// Bytes that allocations still used when their pools were destroyed. They count as the
    /// driver's own memory until they are freed.
    left_in_use: AtomicU64,
}

impl Pools {
    /// Returns the pool with this handle. For an unknown pool, `describe` returns its device and
    /// whether its memory counts.
    pub fn known_or(
        &self,
        handle: MemPool,
        describe: impl FnOnce() -> (Ordinal, bool),
    ) -> &'static Pool {
        let make = || {
            let (device, counted) = describe();
            Pool::new(handle, device, counted)
        };
        self.get(handle).unwrap_or_else(|| self.enter(make()).0)
    }

    /// Returns the managed pool with this handle, and whether it was unknown. Then the pool is
    /// recorded first; its memory counts on `device`.
    pub fn known_managed(&self, handle: MemPool, device: Ordinal) -> (&'static Pool, bool) {
        let make = || Pool {
            managed: true,
            ..Pool::new(handle, device, true)
        };
        match self.get(handle) {
            Some(known) => (known, false),
            None => self.enter(make()),
        }
    }

    /// Records a pool that another process has made. Returns false for a pool that is known.
    pub fn enter_imported(&self, handle: MemPool) -> bool {
        let imported = Pool {
            imported: true,
            ..Pool::new(handle, 0, false)
        };
        self.enter(imported).1
    }

    /// Records a pool, unless another thread has recorded it meanwhile. Returns the pool of the
    /// handle, and whether it was unknown.
    fn enter(&self, pool: Pool) -> (&'static Pool, bool) {
        let mut new = false;
        let mut by_handle = self.by_handle.write();
        let entry = by_handle.entry(pool.handle());
        let known = entry.or_insert_with(|| {
            new = true;
            self.reuse(pool)
        });
        (known, new)
    }

    /// Returns a record with the content of `pool`: that of a destroyed pool of the same kind that
    /// no call under way uses, or a new one.
    fn reuse(&self, pool: Pool) -> &'static Pool {
        let kind = |pool: &Pool| (pool.device, pool.counted, pool.managed, pool.imported);
        let mut unused = self.unused.lock();
        let fits = |known: &&Pool| kind(known) == kind(&pool) && known.lock().promised == 0;
        let Some(at) = unused.iter().position(fits) else {
            return Box::leak(Box::new(pool));
        };
        let known = unused.swap_remove(at);
        known.handle.store(pool.handle(), Ordering::Relaxed);
        known.was_current.store(false, Ordering::Relaxed);
        known.exports.store(0, Ordering::Relaxed);
        let mut state = known.lock();
        known.ticket.forget_steps();
        *state = pool.state.into_inner();
        known
    }

    /// Ends a destroyed pool: its record can be used again. Call when no table has it any more.
    pub fn end(&self, pool: &'static Pool) {
        if !pool.was_current.load(Ordering::Acquire) {
            self.note_created(pool.handle());
        }
        self.unused.lock().push(pool);
    }

    #[cfg(test)]
    fn entries(&self) -> usize {
        let unused = self.unused.lock().len();
        self.by_handle.read().len() + self.destroyed.read().len() + unused
    }

    /// Returns the pool with this handle, if it is known.
    #[inline]
    pub fn get(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.read().get(&handle).copied()
    }

    /// Records that the driver has made a pool with this handle, or does not return it any more.
    pub fn note_created(&self, handle: MemPool) {
        if self.is_destroyed(handle) {
            self.destroyed.write().remove(&handle);
        }
    }

    /// Records a handle that the driver must not be asked about: the driver is about to destroy the
    /// pool or has destroyed it, or the pool is unknown.
    pub fn note_destroyed(&self, handle: MemPool) {
        self.destroyed.write().insert(handle);
    }

    /// Returns whether the pool with this handle is destroyed. The driver must then not be asked
    /// about it.
    pub fn is_destroyed(&self, handle: MemPool) -> bool {
        self.destroyed.read().contains(&handle)
    }

    /// Removes the record of a pool that is being destroyed. The driver may hand out its handle
    /// again for another pool.
    pub fn forget(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.write().remove(&handle)
    }

    /// Puts back the record of a pool whose destruction failed.
    pub fn restore(&self, pool: &'static Pool) {
        pool.lock().retired = false;
        self.note_created(pool.handle());
        self.by_handle.write().insert(pool.handle(), pool);
    }

    /// Records that a pool allocation was made or freed. A pool may then shrink at the next
    /// synchronise call.
    #[inline]
    pub fn touch(&self) {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// Returns whether [`Pools::touch`] was called since the last synchronise call. `all`: the
    /// process has no unfinished work, so the record is cleared.
    #[inline]
    pub fn is_touched(&self, all: bool) -> bool {
        let touched = self.dirty.load(Ordering::Relaxed);
        if touched && all {
            self.dirty.store(false, Ordering::Release);
        }
        touched
    }

    /// Returns the bytes that allocations of destroyed pools still use, and the memory of
    /// `cuMemAlloc` that `cuMemFreeAsync` has freed.
    pub fn left_in_use(&self) -> u64 {
        self.left_in_use.load(Ordering::Relaxed)
    }

    /// Adds `bytes` that allocations of a destroyed pool still use.
    pub fn note_left_in_use(&self, bytes: u64) {
        self.left_in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes` that were freed and may have belonged to allocations of destroyed pools.
    pub fn note_freed(&self, bytes: u64) {
        let freed = |left: u64| Some(left.saturating_sub(bytes));
        let left = &self.left_in_use;
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, freed);
    }

    /// Returns a list of the pools for which `wanted` is true. The caller uses the list without the
    /// lock of the table.
    fn select(&self, wanted: impl Fn(&Pool) -> bool) -> Vec<&'static Pool> {
        let by_handle = self.by_handle.read();
        by_handle
            .values()
            .copied()
            .filter(|pool| wanted(pool))
            .collect()
    }

    /// Reads the reserved bytes of all pools on one device.
    pub fn refresh_on(&self, book: &Book) {
        for pool in self.select(|pool| pool.device == book.ordinal) {
            pool.refresh(book);
        }
    }

    /// Returns every pool.
    pub fn all(&self) -> Vec<&'static Pool> {
        self.select(|_| true)
    }

    /// Uncharges unused bytes of the pools of one device. `trim`: the driver first frees unused
    /// memory. Returns true if bytes were uncharged.
    pub fn reclaim(&self, book: &Book, trim: bool) -> bool {
        let pools = self.select(|pool| pool.counted && pool.device == book.ordinal);
        let gave = pools.iter().map(|pool| match trim && pool.has_memory() {
            true => pool.trim(book, u64::MAX),
            false => pool.refresh(book),
        });
        gave.sum::<u64>() + uncharge_excess(book, true) > 0
    }

    /// Waits, until `until` at most, while calls under way use the headroom for `bytes`. Returns
    /// the number of bytes lent to the caller.
    pub fn await_headroom(&self, book: &Book, bytes: u64, until: Instant) -> u64 {
        let look = || self.refresh_on(book);
        book.pools.await_some(book, bytes, until, look)
    }
}

/// Uncharges headroom that the device does not need. `full`: the group is full. Returns the number
/// of bytes uncharged.
pub fn uncharge_excess(book: &Book, full: bool) -> u64 {
    (book.pools.change(book)).give_back_steps(full, monotonic_ms)
}

/// The current pool of a device, from which `cuMemAllocAsync` takes memory. Null until the driver
/// was asked for it.
#[derive(Default)]
pub struct CurrentPool(AtomicPtr<Pool>);

impl CurrentPool {
    /// Returns the current pool of `device`; `None` where the program has destroyed that pool.
    #[inline]
    pub fn get(&self, pools: &Pools, device: Ordinal) -> Result<Option<&'static Pool>, Status> {
        match self.known() {
            Some(pool) => Ok(Some(pool)),
            None => self.ask(pools, device),
        }
    }

    #[inline(always)]
    pub fn known(&self) -> Option<&'static Pool> {
        cache::read(&self.0)
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

    /// Sets the current pool of the device. With `None`, the driver is asked for the current pool
    /// at the next use.
    pub fn set(&self, pool: Option<&'static Pool>) {
        let pool = pool.map_or(null(), std::ptr::from_ref);
        self.0.store(pool.cast_mut(), Ordering::Release);
    }
}

mod cache {
    //! The record of a pool is never freed, so a pointer to the record stays valid.
    #![allow(unsafe_code)]

    use super::{AtomicPtr, Ordering, Pool};

    #[inline]
    pub fn read(cached: &AtomicPtr<Pool>) -> Option<&'static Pool> {
        // SAFETY: only `CurrentPool::set` stores here, from a `&'static Pool`.
        unsafe { cached.load(Ordering::Acquire).as_ref() }
    }
}

/// Returns the most bytes by which an allocation of `bytes` can make a pool grow.
pub fn growth(bytes: u64) -> u64 {
    round_up(bytes, STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(lent: u64, reserved: u64) -> State {
        State {
            lent: lent * STEP,
            reserved: reserved * STEP,
            ..State::default()
        }
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
    fn destroyed_pools_leave_nothing_behind() {
        let pools = Pools::default();
        let make = |handle, device| pools.known_or(handle, || (device, false));
        let end = |handle| {
            let pool = pools.forget(handle).expect("a pool");
            pool.retire();
            pools.note_destroyed(handle);
            pool
        };
        for handle in 1..10_000 {
            make(handle, handle as Ordinal % 2);
            pools.end(end(handle));
        }
        assert_eq!(pools.entries(), 2, "a record for each device");
        let (busy, other) = (make(20_000, 0), make(20_001, 0));
        busy.state.lock().promised = 1;
        busy.note_current();
        pools.end(end(20_000));
        let next = make(20_002, 0);
        assert!(![busy, other].iter().any(|known| std::ptr::eq(*known, next)));
        assert!(pools.is_destroyed(20_000), "the driver may return it");
        busy.state.lock().promised = 0;
        let again = make(20_003, 0);
        assert!(std::ptr::eq(again, busy) && !again.state.lock().retired);
        assert!(
            pools
                .get(20_003)
                .is_some_and(|known| known.handle() == 20_003)
        );
    }

    #[test]
    fn a_call_with_the_ticket_counts_under_the_lock() {
        let (pool, range) = (Pool::new(1, 0, false), 8 * STEP..9 * STEP);
        pool.lock().lent = STEP;
        pool.ticket.put(7, &range);
        let figures = || {
            let state = pool.lock();
            (state.idle(), state.promised, state.large, state.unseen)
        };
        assert_eq!(figures(), (STEP, 0, 0, 7), "no call has begun");
        pool.ticket.put(8, &range);
        assert!(pool.ticket.begin());
        assert_eq!(figures(), (0, STEP, 0, 8));
        assert!(
            !pool.ticket.end(&range, UNSEEN),
            "the call ends by the state"
        );
        pool.lock().end(STEP, STEP);
        assert_eq!(figures(), (STEP, 0, 0, 8));
    }

    #[test]
    fn a_call_takes_what_the_pool_lacks_or_nothing() {
        let mut state = state(1, 1);
        let headroom = &mut reserve::State::<Calls>::default();
        headroom.charge(STEP);
        headroom.held += 2 * STEP;
        let (steps, all) = (4 * STEP, 3 * STEP);
        assert_eq!(state.take(headroom, steps, steps), None);
        assert_eq!((state.promised, state.large), (0, 0));
        assert_eq!(state.take(headroom, all, all), Some(all));
        assert_eq!((state.lent, state.idle(), state.large), (all, 0, 1));
        assert_eq!(headroom.idle(), 0);
        assert_eq!(state.take(headroom, STEP, 0), Some(0));
        state.end(all, all);
        assert_eq!((state.idle(), state.large, state.takers), (all, 0, 2));
    }

    #[test]
    fn no_look_is_needed_where_the_pool_cannot_have_grown() {
        let mut state = State {
            promised: STEP,
            unseen: UNSEEN - 1,
            ..state(2, 2)
        };
        let range = 8 * STEP..10 * STEP;
        assert!(!state.is_as_seen(&range), "unknown steps");
        state.steps.learn(&range);
        assert!(state.is_as_seen(&range));
        state.unseen += 1;
        assert!(!state.is_as_seen(&range), "too many calls since a reading");
        state.unseen = 0;
        state.large = 1;
        assert!(!state.is_as_seen(&range), "a call may take several steps");
        state.large = 0;
        assert!(state.spare_look(STEP, &range));
        assert!(!state.spare_look(2 * STEP, &range));
        assert_eq!(state.unseen, 1);
        state.promised = 0;
        assert!(!state.is_as_seen(&range), "the pool has more than a step");
        assert!(!state.spare_look(STEP, &range));
        assert_eq!(state.unseen, 1);
    }
}

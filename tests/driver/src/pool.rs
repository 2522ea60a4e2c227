//! Memory pools of the simulated driver. Stream-ordered memory belongs to a pool, not to a context.
//!
//! Measured (H200, 580.159.04): pools of managed memory report the attributes of other pools, but
//! count for no process. These pools outlive the contexts of their GPU.
//!
//! Not simulated: the memory of a managed pool stays until the pool is destroyed and its last
//! pointer freed (measured).
#![allow(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use crate::driver::{Driver, driver};
use crate::machine::BLOCK;
use crate::space::{Entry, Gaps, Use, space};
use crate::work::{self, Name, Queue};
use crate::{Outcome, Status, blocks, checkpoint};

/// A memory pool grows in steps of this many bytes (measured).
pub const STEP: u64 = 32 << 20;
const GRAIN: u64 = 512;
/// The largest number of freed ranges in [`State::quick`]. A full list's ranges are joined with
/// their neighbours.
const QUICK: usize = 16;
/// The index of `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES` in [`State::reuse`].
const INTERNAL_DEPENDENCIES: usize = 2;

/// A hash function for addresses. One multiplication spreads them well enough.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }
}

/// A memory pool. The object is never freed, so that a stale handle points to valid memory.
#[derive(Debug)]
pub struct Pool {
    index: usize,
    device: Option<usize>,
    managed: bool,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    destroyed: bool,
    reuse: [u32; 3],
    threshold: u64,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    live: HashMap<u64, u64, BuildHasherDefault<AddressHasher>>,
    quick: Vec<(u64, u64)>,
    free: Gaps,
    /// Freed ranges, each for its own stream alone until that stream's earlier work ends.
    pending: Vec<Pending>,
    steps: BTreeSet<u64>,
    /// The start of a managed pool's address range. `None` before its first growth, and for other
    /// pools.
    arena: Option<u64>,
}

/// A freed range that other streams cannot use until the freeing stream's earlier work ends.
#[derive(Clone, Debug)]
struct Pending {
    range: Range<u64>,
    queue: Queue,
    end: u64,
}

static POOLS: RwLock<Vec<&'static Pool>> = RwLock::new(Vec::new());

impl Pool {
    /// Makes a pool on a GPU. `None` makes a pool on the host, which takes no GPU memory.
    pub fn make(device: Option<usize>) -> &'static Pool {
        Pool::new(device, false)
    }

    /// Makes a pool of managed memory for a GPU.
    pub fn make_managed(device: usize) -> &'static Pool {
        checkpoint::count_managed(1);
        Pool::new(Some(device), true)
    }

    fn new(device: Option<usize>, managed: bool) -> &'static Pool {
        let mut pools = POOLS.write().unwrap_or_else(PoisonError::into_inner);
        let state = State {
            reuse: [1; 3],
            ..State::default()
        };
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            index: pools.len(),
            device,
            managed,
            state: Mutex::new(state),
        }));
        pools.push(pool);
        pool
    }

    /// Returns the pool with this index in the process's list of pools.
    pub fn by_index(index: usize) -> Option<&'static Pool> {
        POOLS
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(index)
            .copied()
    }

    fn on(device: usize) -> Vec<&'static Pool> {
        let pools = POOLS.read().unwrap_or_else(PoisonError::into_inner);
        pools
            .iter()
            .copied()
            .filter(|pool| pool.device == Some(device))
            .collect()
    }

    /// Returns the pool's `CUmemoryPool` handle.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the pool of a `CUmemoryPool` handle.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other handle, or a destroyed pool.
    pub fn from_handle(handle: usize) -> Outcome<&'static Pool> {
        let pool = Pool::even_destroyed(handle)?;
        if pool.state().destroyed {
            Err(Status::INVALID_VALUE)
        } else {
            Ok(pool)
        }
    }

    /// Returns the pool of a handle, even a destroyed pool, which can be a GPU's current pool
    /// (measured, H200).
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other handle.
    pub fn even_destroyed(handle: usize) -> Outcome<&'static Pool> {
        let pools = POOLS.read().unwrap_or_else(PoisonError::into_inner);
        let found = pools.iter().find(|pool| pool.handle() == handle);
        found.copied().ok_or(Status::INVALID_VALUE)
    }

    /// Returns whether this `CUmemoryPool` handle stands for a destroyed pool.
    pub fn was_destroyed(handle: usize) -> bool {
        Pool::even_destroyed(handle).is_ok_and(|pool| pool.state().destroyed)
    }

    /// Returns the PCI index of the pool's GPU; `None` for a pool on the host.
    pub fn device(&self) -> Option<usize> {
        self.device
    }

    /// Returns whether the pool holds managed memory.
    pub fn is_managed(&self) -> bool {
        self.managed
    }

    /// Returns the GPU on which the pool's memory counts; `None` for managed pools and pools on the
    /// host.
    fn taken_from(&self) -> Option<usize> {
        self.device.filter(|_| !self.managed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for a stream. The pool grows if no gap is large enough and free for this
    /// stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes and for a destroyed pool, `OUT_OF_MEMORY`.
    pub fn allocate(&self, bytes: u64, stream: Name) -> Outcome<u64> {
        if bytes == 0 || self.state().destroyed {
            return Err(Status::INVALID_VALUE);
        }
        let size = bytes
            .checked_next_multiple_of(GRAIN)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let mut state = self.state();
        let address = match state.take(size, stream) {
            Some(address) => address,
            None => match self.grow(&mut state, size) {
                Ok(()) => state.take(size, stream).ok_or(Status::UNKNOWN)?,
                Err(status) => state.take_dependent(size, stream).ok_or(status)?,
            },
        };
        state.live.insert(address, bytes);
        state.used += size;
        state.used_high = state.used_high.max(state.used);
        Ok(address)
    }

    fn grow(&self, state: &mut State, size: u64) -> Outcome<()> {
        let driver = driver()?;
        let bytes = size
            .checked_next_multiple_of(STEP)
            .ok_or(Status::OUT_OF_MEMORY)?;
        if let Some(device) = self.taken_from()
            && !driver.take_bare(device, bytes)
        {
            // This pool, and then all other pools on the GPU, give back their unused memory.
            self.shrink(driver, state, |reserved| reserved > 0);
            Pool::trim_all(device);
            if !driver.take_bare(device, bytes) {
                return Err(Status::OUT_OF_MEMORY);
            }
        }
        let address = match self.managed {
            true => state.place_in_arena(bytes)?,
            false => space().take(bytes, STEP)?,
        };
        space().mark(
            address,
            bytes / BLOCK,
            Entry::new(Use::Pool, 0, 0, self.index),
        );
        state
            .steps
            .extend((address..address + bytes).step_by(STEP as usize));
        state.reserved += bytes;
        state.reserved_high = state.reserved_high.max(state.reserved);
        state.free.give(address, bytes);
        Ok(())
    }

    /// Frees an allocation once the stream's present work is done.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that the pool did not allocate.
    pub fn free(&self, address: u64, stream: Name) -> Outcome<()> {
        let mut state = self.state();
        let bytes = state.live.remove(&address).ok_or(Status::INVALID_VALUE)?;
        let size = bytes.next_multiple_of(GRAIN);
        state.used -= size;
        match stream.queue() {
            Some(queue) => state.free_in_order(address..address + size, queue),
            None => state.free_now(address, size),
        }
        if state.destroyed && state.live.is_empty() {
            self.shrink(driver()?, &mut state, |_| true);
        }
        Ok(())
    }

    /// Gives unused steps of the pool back to the GPU, as long as `more` returns true. `more` gets
    /// the pool's reserved bytes.
    fn shrink(&self, driver: &Driver, state: &mut State, more: impl Fn(u64) -> bool) {
        state.settle();
        state.merge();
        for (start, length) in state.free.all().into_iter().rev() {
            let first = start.next_multiple_of(STEP);
            let mut end = (start + length) / STEP * STEP;
            while end > first && more(state.reserved) {
                end -= STEP;
                state.steps.remove(&end);
                state.free.cut(end..end + STEP);
                state.reserved -= STEP;
                space().mark(end, STEP / BLOCK, Entry::NONE);
                if let Some(device) = self.taken_from() {
                    driver.give(device, STEP);
                }
                if !self.managed {
                    space().give(end, STEP);
                }
            }
        }
    }

    /// `cuMemPoolTrimTo`: gives back unused memory but keeps at least `keep` bytes reserved.
    ///
    /// # Errors
    /// `NOT_INITIALIZED`.
    pub fn trim(&self, keep: u64) -> Outcome<()> {
        let driver = driver()?;
        self.shrink(driver, &mut self.state(), |reserved| {
            reserved >= keep.saturating_add(STEP)
        });
        Ok(())
    }

    /// Trims the pools of a GPU to their release thresholds, and ends what `cuMemFreeAsync` has
    /// begun, as a synchronising driver call does.
    pub fn synchronize_all(device: usize) {
        let Ok(driver) = driver() else { return };
        blocks::synchronize(device);
        for pool in Pool::on(device) {
            let mut state = pool.state();
            // A destroyed pool without live pointers gives back everything.
            let gone = state.destroyed && state.live.is_empty();
            let threshold = if gone { 0 } else { state.threshold };
            if state.reserved > threshold {
                pool.shrink(driver, &mut state, |reserved| reserved > threshold);
            }
        }
    }

    /// Makes every pool of the GPU give back its unused memory. Skips a pool that another thread
    /// has locked.
    pub fn trim_all(device: usize) {
        let Ok(driver) = driver() else { return };
        for pool in Pool::on(device) {
            let mut state = match pool.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            pool.shrink(driver, &mut state, |_| true);
        }
    }

    /// Drops all memory of the GPU's pools when the last context on the GPU is destroyed. Managed
    /// pools keep their memory.
    pub fn clear_all(device: usize) {
        for pool in Pool::on(device).into_iter().filter(|pool| !pool.managed) {
            pool.clear();
        }
    }

    fn clear(&self) {
        let Ok(driver) = driver() else { return };
        let mut state = self.state();
        state.live.clear();
        state.quick.clear();
        state.pending.clear();
        state.used = 0;
        state.free = Gaps::default();
        for step in &state.steps.clone() {
            state.free.give(*step, STEP);
        }
        self.shrink(driver, &mut state, |_| true);
    }

    /// Destroys the pool; its memory is given back when its last pointer is freed.
    ///
    /// # Errors
    /// `NOT_INITIALIZED`.
    pub fn destroy(&self) -> Outcome<()> {
        let driver = driver()?;
        let mut state = self.state();
        state.destroyed = true;
        self.shrink(driver, &mut state, |_| true);
        Ok(())
    }

    /// Finds the pool's allocation that contains an address. Returns its start, and the bytes that
    /// the program asked for.
    pub fn find(&self, address: u64) -> Option<(u64, u64)> {
        let state = self.state();
        let found = state.live.get(&address).map(|bytes| (address, *bytes));
        found.or_else(|| {
            let inside =
                |(start, bytes): &(&u64, &u64)| **start <= address && address < **start + **bytes;
            state
                .live
                .iter()
                .find(inside)
                .map(|(start, bytes)| (*start, *bytes))
        })
    }

    /// Returns a pool attribute by its number.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown number.
    pub fn attribute(&self, attribute: i32) -> Outcome<u64> {
        let state = self.state();
        Ok(match attribute {
            1..=3 => u64::from(state.reuse[attribute as usize - 1]),
            4 => state.threshold,
            5 => state.reserved,
            6 => state.reserved_high,
            7 => state.used,
            8 => state.used_high,
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// Sets a pool attribute by its number. A high-water mark can only be set to 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other attributes and values.
    pub fn set_attribute(&self, attribute: i32, value: u64) -> Outcome<()> {
        let mut state = self.state();
        match (attribute, value) {
            (1..=3, _) => state.reuse[attribute as usize - 1] = value as u32,
            (4, _) => state.threshold = value,
            (6, 0) => state.reserved_high = state.reserved,
            (8, 0) => state.used_high = state.used,
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    }
}

impl State {
    /// Returns the lowest free addresses in a managed pool's range, so that the pool reuses its
    /// addresses (measured).
    fn place_in_arena(&mut self, bytes: u64) -> Outcome<u64> {
        const ARENA: u64 = 256 << 30;
        let base = match self.arena {
            Some(base) => base,
            None => *self.arena.insert(space().take(ARENA, STEP)?),
        };
        let mut start = base;
        for step in &self.steps {
            if step - start >= bytes {
                break;
            }
            start = step + STEP;
        }
        match base + ARENA - start >= bytes {
            true => Ok(start),
            false => Err(Status::OUT_OF_MEMORY),
        }
    }

    /// Takes a gap of this size. The stream can use this gap without waiting.
    fn take(&mut self, size: u64, stream: Name) -> Option<u64> {
        if self.pending.is_empty() {
            self.take_free(size)
        } else {
            self.take_own(size, stream)
        }
    }

    #[cold]
    fn take_own(&mut self, size: u64, stream: Name) -> Option<u64> {
        let queue = stream.queue();
        self.settle();
        self.merge();
        let (address, _) = self.take_among(size, |pending| Some(pending.queue) == queue)?;
        Some(address)
    }

    /// Takes a freed range of exactly this size. If there is none, takes the first gap that is
    /// large enough.
    fn take_free(&mut self, size: u64) -> Option<u64> {
        if let Some(position) = self.quick.iter().rposition(|(freed, _)| *freed == size) {
            return Some(self.quick.swap_remove(position).1);
        }
        self.merge();
        self.free.take(size, |start| start)
    }

    /// Takes a gap that another stream may still be using. The calling stream then waits for that
    /// other stream.
    #[cold]
    fn take_dependent(&mut self, size: u64, stream: Name) -> Option<u64> {
        if self.reuse[INTERNAL_DEPENDENCIES] == 0 {
            return None;
        }
        let queue = stream.queue()?;
        let (address, end) = self.take_among(size, |_| true)?;
        queue.add(end, 0);
        Some(address)
    }

    /// Takes the first gap that is large enough, from free memory and pending ranges that `may`
    /// accepts.
    ///
    /// Returns the address, and the time at which all of the gap is free.
    fn take_among(&mut self, size: u64, may: impl FnMut(&Pending) -> bool) -> Option<(u64, u64)> {
        let (lent, kept) = std::mem::take(&mut self.pending).into_iter().partition(may);
        self.pending = kept;
        let lent: Vec<Pending> = lent;
        for Pending { range, .. } in &lent {
            self.free.give(range.start, range.end - range.start);
        }
        let found = self.free.take(size, |start| start);
        let taken = found.map_or(0..0, |start| start..start + size);
        let mut free_at = 0;
        for Pending { range, queue, end } in lent {
            let before = range.start..range.end.min(taken.start);
            let after = range.start.max(taken.end)..range.end;
            if range.start < taken.end && taken.start < range.end {
                free_at = free_at.max(end);
            }
            for range in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
                self.free.cut(range.clone());
                self.pending.push(Pending { range, queue, end });
            }
        }
        Some((found?, free_at))
    }

    fn free_now(&mut self, address: u64, size: u64) {
        if self.quick.len() == QUICK {
            self.merge();
        }
        self.quick.push((size, address));
    }

    #[cold]
    fn free_in_order(&mut self, range: Range<u64>, queue: Queue) {
        let end = queue.add(0, 0);
        if work::is_over(end) {
            self.free_now(range.start, range.end - range.start);
        } else {
            self.pending.push(Pending { range, queue, end });
        }
    }

    /// Frees every pending range whose stream has done its work.
    fn settle(&mut self) {
        let ended: Vec<Pending> = self
            .pending
            .extract_if(.., |pending| work::is_over(pending.end))
            .collect();
        for Pending { range, .. } in ended {
            self.free.give(range.start, range.end - range.start);
        }
    }

    fn merge(&mut self) {
        while let Some((size, address)) = self.quick.pop() {
            self.free.give(address, size);
        }
    }
}

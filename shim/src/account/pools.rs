//! Stream-ordered memory: the physical bytes belong to the pool, not to the pointer.
//!
//! A pool's reserved bytes grow in steps of 32 MiB inside an allocation (never by more than the request rounded up to a step: measured) and
//! shrink inside synchronise calls, `TrimTo` and destruction. So an allocation is preceded by a charge for its largest possible growth, and
//! followed by one look at the pool's attribute. What was charged too much stays for the next allocation, one step at most, until the
//! program synchronises.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use gpulimit_core::ledger::Category;
use parking_lot::{Mutex, RwLock};

use super::device::Device;
use super::{Account, round_up};
use crate::abi::{
    Device as Ordinal, MEMPOOL_ATTR_RESERVED_MEM_CURRENT, MEMPOOL_ATTR_USED_MEM_CURRENT, MemPool,
    Out, SUCCESS,
};
use crate::capture::relaxed;
use crate::table::cuda;

/// A pool's reserved bytes grow in multiples of this (measured).
pub const STEP: u64 = 32 << 20;

#[derive(Default)]
struct State {
    /// The pool's unused memory has lately turned out to be in pieces.
    in_pieces: bool,
    /// Charged for this pool.
    held: u64,
    /// Of `held`, promised to calls under way.
    prepaid: u64,
    /// Reserved by the pool as last seen.
    reserved: u64,
}

impl State {
    fn idle(&self) -> u64 {
        self.held.saturating_sub(self.reserved + self.prepaid)
    }
}

/// A memory pool whose memory lies on a device (`counted`), or elsewhere.
pub struct Pool {
    handle: MemPool,
    pub device: Ordinal,
    /// Whether it takes device memory of ours: not for host, managed and imported pools.
    pub counted: bool,
    state: Mutex<State>,
}

impl Pool {
    #[inline]
    fn attribute(&self, attribute: i32) -> Option<u64> {
        let mut bytes = 0u64;
        let asked =
            relaxed(|| cuda::cuMemPoolGetAttribute(self.handle, attribute, Out::of(&mut bytes)));
        (asked == SUCCESS).then_some(bytes)
    }

    /// Pays for the growth of `bytes` out of what is idle. False when more has to be charged first: see [`Pool::pay`].
    #[inline]
    pub fn prepay(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let enough = state.idle() >= bytes;
        if enough {
            state.prepaid += bytes;
        }
        enough
    }

    /// Takes over `bytes` that `charge` charges ahead for growth.
    pub fn pay<E>(&self, bytes: u64, charge: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        charge()?;
        let mut state = self.state.lock();
        state.held += bytes;
        state.prepaid += bytes;
        Ok(())
    }

    /// The call that had paid `bytes` ahead is over: looks how the pool stands now. Returns the bytes by which it grew beyond everything
    /// that was paid.
    #[inline]
    pub fn settle(&self, device: &Device, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        state.prepaid = state.prepaid.saturating_sub(bytes);
        self.look(device, &mut state, STEP)
    }

    /// Looks at the pool outside of an allocation; keeps nothing idle.
    pub fn refresh(&self, device: &Device) {
        if self.counted {
            self.look(device, &mut self.state.lock(), 0);
        }
    }

    fn look(&self, device: &Device, state: &mut State, keep: u64) -> u64 {
        // The attribute is read under our lock so that looks are in order; the call takes no lock that a callback of ours could hold.
        // A pool that no longer answers has nothing.
        let reserved = self
            .attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            .unwrap_or(0);
        let mut beyond = 0;
        let grown = reserved > state.reserved;
        if reserved != state.reserved {
            if reserved > state.reserved {
                device.add(Category::Pools, reserved - state.reserved);
            } else {
                device.remove(Category::Pools, state.reserved - reserved);
                state.in_pieces = false;
            }
            device.adjust_idle(state.reserved.wrapping_sub(reserved) as i64);
            state.reserved = reserved;
            let needed = reserved + state.prepaid;
            if needed > state.held {
                beyond = needed - state.held;
                if device.try_charge(beyond) {
                    beyond = 0;
                } else {
                    device.charge_over(beyond);
                }
                device.add_idle(needed - state.held);
                state.held = needed;
            }
        }
        let idle = state.idle();
        if idle > keep {
            state.held -= idle - keep;
            device.uncharge_idle(idle - keep);
        }
        if grown {
            device.note_usage();
        }
        beyond
    }

    /// The pool was destroyed: what it held has no name any more. Returns the bytes that stay charged for it, as idle ones, until the caller
    /// has measured what the driver has not let go of yet.
    pub fn close(&self, device: &Device) -> u64 {
        let state = std::mem::take(&mut *self.state.lock());
        device.remove(Category::Pools, state.reserved);
        device.add_idle(state.reserved);
        state.held
    }

    /// Bytes that the pool has reserved and not handed out.
    fn unused(&self) -> u64 {
        let reserved = self
            .attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            .unwrap_or(0);
        reserved.saturating_sub(
            self.attribute(MEMPOOL_ATTR_USED_MEM_CURRENT)
                .unwrap_or(reserved),
        )
    }

    /// Whether a request of `bytes` may be expected to fit into what the pool has reserved and not handed out. A pool whose unused memory was
    /// in pieces is not trusted again until it has given some of it back.
    pub fn has_room(&self, bytes: u64) -> bool {
        !self.state.lock().in_pieces && self.unused() >= bytes
    }

    /// A request that should have fitted made the pool grow.
    pub fn is_in_pieces(&self) {
        self.state.lock().in_pieces = true;
    }

    /// Lets the driver give back up to `bytes` of the pool's unused reserve.
    pub fn trim(&self, device: &Device, bytes: u64) {
        let reserved = self
            .attribute(MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            .unwrap_or(0);
        let keep = usize::try_from(reserved.saturating_sub(bytes)).unwrap_or(usize::MAX);
        relaxed(|| cuda::cuMemPoolTrimTo(self.handle, keep));
        self.refresh(device);
    }
}

/// The pools of a process. Entries are never freed: programs make few, and hooks hold references without counting.
#[derive(Default)]
pub struct Pools {
    by_handle: RwLock<HashMap<MemPool, &'static Pool>>,
    /// An allocation or a free has happened since the last synchronise call.
    dirty: AtomicBool,
    /// Bytes that destroyed pools had left in use: measured with the driver's part until they are gone.
    orphaned: AtomicU64,
}

impl Pools {
    /// The pool with this handle, entered with what `describe` says (device, whether it counts) when it is new.
    pub fn known_or(
        &self,
        handle: MemPool,
        describe: impl FnOnce() -> (Ordinal, bool),
    ) -> &'static Pool {
        if let Some(pool) = self.by_handle.read().get(&handle) {
            return pool;
        }
        let (device, counted) = describe();
        self.by_handle.write().entry(handle).or_insert_with(|| {
            Box::leak(Box::new(Pool {
                handle,
                device,
                counted,
                state: Mutex::default(),
            }))
        })
    }

    /// The pool that a cached pointer stands for.
    #[inline]
    pub fn at(&self, cached: &AtomicPtr<Pool>) -> Option<&'static Pool> {
        cache::read(cached)
    }

    /// The pool is destroyed: its handle may come back as another one.
    pub fn forget(&self, handle: MemPool) -> Option<&'static Pool> {
        self.by_handle.write().remove(&handle)
    }

    /// The pool lives on: its destruction failed.
    pub fn restore(&self, pool: &'static Pool) {
        self.by_handle.write().insert(pool.handle, pool);
    }

    /// Something happened to a pool that the next synchronise call may conclude.
    #[inline]
    pub fn touch(&self) {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// After a synchronise call: pools above their release threshold have shrunk. `all`: no work of this process is left that could
    /// let a later one shrink them more.
    #[inline]
    pub fn synchronized(&self, account: &'static Account, all: bool) {
        if self.dirty.load(Ordering::Relaxed) {
            if all {
                self.dirty.store(false, Ordering::Release);
            }
            self.refresh(account);
            if self.orphaned.load(Ordering::Relaxed) > 0 {
                self.measure_orphans(account);
            }
        }
    }

    /// A destroyed pool left `bytes` in use.
    pub fn orphan(&self, bytes: u64) {
        self.orphaned.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn measure_orphans(&self, account: &'static Account) {
        for device in account.devices() {
            let before = device.driver.used();
            device.driver.measure(device);
            let gone = before.saturating_sub(device.driver.used());
            let _ = self
                .orphaned
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    Some(left.saturating_sub(gone))
                });
        }
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
    pub fn refresh_on(&self, device: &Device) {
        for pool in self.select(|pool| pool.device == device.ordinal) {
            pool.refresh(device);
        }
    }

    /// Looks at every pool.
    pub fn refresh(&self, account: &'static Account) {
        for pool in self.select(|_| true) {
            if let Ok(device) = account.device(pool.device) {
                pool.refresh(device);
            }
        }
    }

    /// Gives back what the pools of `device` hold unused: the charge in any case, the memory too if `trim`. True when something came back.
    pub fn reclaim(&self, device: &Device, trim: bool) -> bool {
        let mut gave = false;
        let pools = self.select(|pool| pool.counted && pool.device == device.ordinal);
        for pool in pools {
            // A thread that is inside this pool holds its lock: it is about to settle by itself.
            let before = pool.state.try_lock().map(|state| state.held);
            if trim && before != Some(0) {
                pool.trim(device, u64::MAX);
            } else {
                pool.refresh(device);
            }
            gave |= before.is_some_and(|before| pool.state.lock().held < before);
        }
        gave
    }
}

mod cache {
    //! Pools are leaked, so a pointer to one stays valid.
    #![allow(unsafe_code)]

    use super::{AtomicPtr, Ordering, Pool};

    #[inline]
    pub fn read(cached: &AtomicPtr<Pool>) -> Option<&'static Pool> {
        // SAFETY: only `Device::set_current_pool` stores here, from a `&'static Pool`.
        unsafe { cached.load(Ordering::Acquire).as_ref() }
    }
}

/// Largest growth of a pool by a request of `bytes`.
pub fn growth(bytes: u64) -> u64 {
    round_up(bytes, STEP)
}

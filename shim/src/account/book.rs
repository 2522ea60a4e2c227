//! The book of one GPU: the bytes that this process has charged, and how many of them each category
//! of memory uses. The process publishes these figures in the group's ledger.
//!
//! The book does not call CUDA. [`Device`](super::device::Device) decides which bytes the process
//! gives back in a full group.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpulimit_group::{Insistence, MemberDevice, Refusal};
use gpulimit_ledger::{Category, Idle, Pressure};

use super::pools::headroom::Headroom;
use crate::abi::Device as Ordinal;
use crate::driver::figures::ProcessList;

/// Bytes that stay charged beyond the driver's own memory. They pay for a 2 MiB block that the
/// driver takes unexpectedly.
pub const RESERVE: u64 = 4 << 20;

/// The most attempts to read the group's free bytes together with this process's idle bytes. Other
/// threads may change both.
const SETTLING: u32 = 64;

/// The most times that a thread publishes a figure which other threads keep changing.
const SHOWINGS: u32 = 1_000;

/// The charges of this process on one GPU.
pub struct Book {
    /// The CUDA ordinal of the GPU.
    pub ordinal: Ordinal,
    /// The charges of this process in its groups.
    pub group: MemberDevice<'static>,
    used: [AtomicU64; Category::COUNT],
    /// The total of the bytes that were ever passed to [`Book::remove`].
    removed: AtomicU64,
    idle: AtomicI64,
    /// The number of changes of the field `idle` so far.
    idle_changes: AtomicU64,
    /// Idle bytes (charged, not in use) that the reserves of the GPU need.
    headroom: AtomicI64,
    /// What is charged in advance for the growth of pools.
    pub pools: Headroom,
}

impl Book {
    pub fn new(ordinal: Ordinal, group: MemberDevice<'static>) -> Book {
        Book {
            ordinal,
            group,
            used: Default::default(),
            removed: AtomicU64::new(0),
            idle: AtomicI64::new(0),
            idle_changes: AtomicU64::new(0),
            headroom: AtomicI64::new(0),
            pools: Headroom::default(),
        }
    }

    /// Returns the bytes that the group and its ancestors keep free on the GPU.
    pub fn keep_free(&self) -> u64 {
        self.group.keep_free().map_or(0, |(keep, _)| keep)
    }

    /// Uncharges the memory of dead members, so that figures do not count it.
    pub fn clean(&self) {
        self.group.clean_at_times(&ProcessList);
    }

    /// Returns the bytes that this process could still allocate: the group's free bytes plus this
    /// process's idle bytes without fixed purpose.
    pub fn free(&self) -> u64 {
        for _ in 0..SETTLING {
            if let Some(free) = self.settled_free() {
                return free;
            }
            std::thread::yield_now();
        }
        self.seen_free()
    }

    /// Returns the bytes of [`Book::free`], or `None` if another thread has changed the figures
    /// during the call.
    pub(super) fn settled_free(&self) -> Option<u64> {
        // A request under way is visible in two ways: the ledger marks its charge as undecided, and
        // the request increments `idle_changes`.
        let changes = self.idle_changes.load(Ordering::Acquire);
        let before = self.group.is_decided();
        let free = self.seen_free();
        let settled = before
            && self.group.is_decided()
            && self.idle_changes.load(Ordering::Acquire) == changes;
        settled.then_some(free)
    }

    fn seen_free(&self) -> u64 {
        let idle = self.idle().saturating_sub(self.stays_idle());
        self.group.free().saturating_add(idle)
    }

    /// Returns the idle bytes (charged, not in use) that are kept for a fixed purpose.
    fn stays_idle(&self) -> u64 {
        u64::try_from(self.headroom.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Charges `bytes` and counts them as in use. In a full group, `pressure` first frees memory.
    #[inline]
    pub fn charge(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
    ) -> Result<(), Refusal<'static>> {
        self.group.charge(bytes, pressure, insistence)
    }

    /// Charges `bytes` like [`Book::charge`], but as idle: charged and not in use yet.
    pub fn charge_ahead(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
    ) -> Result<(), Refusal<'static>> {
        let idle = Ahead(self, bytes);
        self.group
            .charge_ahead(bytes, pressure, insistence, &idle)?;
        self.show_reclaimable();
        Ok(())
    }

    /// Tries once to charge `bytes`. Neither waits nor reclaims bytes from other members.
    pub fn try_charge(&self, bytes: u64) -> bool {
        self.group.try_charge_ahead(bytes, &())
    }

    /// Tries to charge `bytes` like [`Book::try_charge`], but as idle: charged and not in use yet.
    pub fn try_charge_ahead(&self, bytes: u64) -> bool {
        let idle = Ahead(self, bytes);
        let charged = self.group.try_charge_ahead(bytes, &idle);
        if charged {
            self.show_reclaimable();
        }
        charged
    }

    /// Uncharges `bytes` from the group. Call after the driver has freed them.
    pub fn uncharge(&self, bytes: u64) {
        if bytes > 0 {
            self.group.uncharge(bytes);
        }
    }

    /// Uncharges `bytes` that were idle (charged, not in use).
    pub fn uncharge_idle(&self, bytes: u64) {
        if bytes > 0 {
            self.group.uncharge_idle(bytes, &Ahead(self, bytes));
            self.show_reclaimable();
        }
    }

    /// Records `bytes`, which are charged already, as in use in `category`.
    pub fn add(&self, category: Category, bytes: u64) {
        self.shift(category, |used| used.wrapping_add(bytes));
    }

    /// Removes `bytes` from the bytes in use in `category`. They stay charged until
    /// [`Book::uncharge`].
    pub fn remove(&self, category: Category, bytes: u64) {
        self.shift(category, |used| used.saturating_sub(bytes));
        self.removed.fetch_add(bytes, Ordering::AcqRel);
    }

    fn shift(&self, category: Category, change: impl Fn(u64) -> u64) {
        let Some(used) = self.used.get(category as usize) else {
            return;
        };
        let _ = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            Some(change(used))
        });
        self.show(category);
    }

    fn show(&self, category: Category) {
        publish(
            || self.used(category),
            |bytes| self.group.publish(category, bytes),
        );
    }

    fn used(&self, category: Category) -> u64 {
        let used = self.used.get(category as usize);
        used.map_or(0, |used| used.load(Ordering::Acquire))
    }

    /// Sets the size of the driver's own memory in this process to `after` bytes; it was `before`.
    pub fn set_driver(&self, before: u64, after: u64) {
        if before != after {
            self.shift(Category::Driver, |_| after);
        }
    }

    /// Returns the *named* bytes: bytes in use whose size the program gave. Managed memory is left
    /// out: NVML does not report it.
    pub fn named(&self) -> u64 {
        Category::ALL
            .iter()
            .filter(|category| !matches!(category, Category::Managed | Category::Driver))
            .map(|category| self.used(*category))
            .sum()
    }

    /// Returns the total of the bytes that were ever passed to [`Book::remove`].
    pub fn removed(&self) -> u64 {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns the idle bytes of this process (charged, not in use). A counter that is negative for
    /// a moment reads as 0.
    fn idle(&self) -> u64 {
        u64::try_from(self.idle.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Records `bytes`, which are charged already, as idle (not in use).
    pub fn add_idle(&self, bytes: u64) {
        self.adjust_idle(bytes as i64);
    }

    /// Subtracts `bytes` from the idle bytes (charged, not in use). Call when these bytes have come
    /// into use.
    pub fn remove_idle(&self, bytes: u64) {
        self.adjust_idle((bytes as i64).wrapping_neg());
    }

    /// Changes the number of idle bytes (charged, not in use) by a signed amount.
    pub fn adjust_idle(&self, change: i64) {
        if change != 0 {
            self.count_idle(change);
            if change < 0 {
                self.group.note_use(change.unsigned_abs());
            }
            self.show_reclaimable();
        }
    }

    fn count_idle(&self, change: i64) {
        self.idle_changes.fetch_add(1, Ordering::AcqRel);
        self.idle.fetch_add(change, Ordering::AcqRel);
        publish(|| self.idle(), |bytes| self.group.publish_idle(bytes));
    }

    /// Publishes how many bytes this process could give back. Not called during a charge, because
    /// the call reads the whole group's figures.
    fn show_reclaimable(&self) {
        publish(
            || self.reclaimable(self.idle()),
            |bytes| self.group.publish_reclaimable(bytes),
        );
    }

    /// Returns the most bytes that this process could give back. `idle`: the charged bytes that are
    /// not in use.
    fn reclaimable(&self, idle: u64) -> u64 {
        // Only the driver knows how many bytes of pools and graphs are unused. So all these bytes
        // count as reclaimable.
        let reserves = self.used(Category::Pools) + self.used(Category::Graphs);
        idle.saturating_sub(self.stays_idle()) + reserves
    }

    /// Adds `change` to the idle bytes (charged, not in use) that are kept for a fixed purpose.
    pub fn adjust_headroom(&self, change: i64) {
        if change != 0 {
            self.headroom.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Returns whether other processes of the group have charged bytes on this GPU.
    pub fn has_others(&self) -> bool {
        let used = self.used.iter().map(|used| used.load(Ordering::Relaxed));
        let own = used.sum::<u64>() + self.idle();
        self.group.charged() > own
    }
}

/// Publishes the number that `figure` returns: `show` writes it to the ledger. Repeats, within a
/// bound, while the number changes.
fn publish(figure: impl Fn() -> u64, show: impl Fn(u64)) {
    for _ in 0..SHOWINGS {
        let bytes = figure();
        show(bytes);
        if figure() == bytes {
            return;
        }
    }
}

/// Bytes charged in advance. The ledger adds them to the idle bytes, and removes them when it
/// uncharges them.
struct Ahead<'a>(&'a Book, u64);

impl Idle for Ahead<'_> {
    fn add(&self) {
        self.0.count_idle(self.1 as i64);
    }

    fn remove(&self) {
        self.0.count_idle((self.1 as i64).wrapping_neg());
    }
}

#[cfg(test)]
mod tests;

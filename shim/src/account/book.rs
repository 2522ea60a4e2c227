//! The book of one GPU: the bytes that this process has charged, and how many of them each category
//! of memory uses. The process publishes these figures in the group's ledger.
//!
//! The book does not call CUDA. [`Device`](super::device::Device) decides which bytes the process
//! gives back in a full group.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpulimit_group::{Insistence, Member, MemberDevice, Refusal};
use gpulimit_ledger::{Category, DeviceUsage, Idle, Pressure};

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
    pub(super) member: &'static Member,
    pub(super) device: MemberDevice,
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
    pub fn new(ordinal: Ordinal, member: &'static Member, device: MemberDevice) -> Book {
        Book {
            ordinal,
            member,
            device,
            used: Default::default(),
            removed: AtomicU64::new(0),
            idle: AtomicI64::new(0),
            idle_changes: AtomicU64::new(0),
            headroom: AtomicI64::new(0),
            pools: Headroom::default(),
        }
    }

    pub fn member(&self) -> &'static Member {
        self.member
    }

    /// Returns the smallest limit of the group and its ancestors, in bytes; `u64::MAX` without a
    /// limit.
    pub fn max(&self) -> u64 {
        self.member.max(&self.device)
    }

    /// Returns the bytes that the group and its ancestors keep free on the GPU.
    pub fn keep_free(&self) -> u64 {
        (self.member.keep_free(&self.device)).map_or(0, |(keep, _)| keep)
    }

    /// Returns the bytes that can still be charged to the group.
    pub fn group_free(&self) -> u64 {
        self.member.free(&self.device)
    }

    /// Uncharges the memory of dead members, so that figures do not count it.
    pub fn clean(&self) {
        self.member.clean_at_times(&self.device, &ProcessList);
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
        let before = self.member.is_decided(&self.device);
        let free = self.seen_free();
        let settled = before
            && self.member.is_decided(&self.device)
            && self.idle_changes.load(Ordering::Acquire) == changes;
        settled.then_some(free)
    }

    fn seen_free(&self) -> u64 {
        let idle = self.idle().saturating_sub(self.stays_idle());
        self.group_free().saturating_add(idle)
    }

    /// Returns the idle bytes (charged, not in use) that are kept for a fixed purpose.
    fn stays_idle(&self) -> u64 {
        u64::try_from(self.headroom.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns the smallest limit of the group and its ancestors, in bytes, and the bytes in use in
    /// the group that sets it; `u64::MAX` without a limit.
    pub fn limit_and_usage(&self) -> (u64, u64) {
        self.member.limit_and_usage(&self.device)
    }

    /// Returns the figures of this process in its group's ledger.
    pub fn own_usage(&self) -> DeviceUsage {
        self.member.own_usage(&self.device)
    }

    /// Returns this process's largest usage since the last call, in bytes.
    pub fn restart_peak(&self) -> u64 {
        self.member.restart_peak(&self.device)
    }

    /// Charges `bytes` and counts them as in use. In a full group, `pressure` first frees memory.
    #[inline]
    pub fn charge(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
    ) -> Result<(), Refusal<'static>> {
        self.member
            .charge(&self.device, bytes, pressure, insistence)
    }

    /// Charges `bytes` like [`Book::charge`], but as idle: charged and not in use yet.
    pub fn charge_ahead(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
    ) -> Result<(), Refusal<'static>> {
        let idle = Ahead(self, bytes);
        self.member
            .charge_ahead(&self.device, bytes, pressure, insistence, &idle)?;
        self.show_reclaimable();
        Ok(())
    }

    /// Tries once to charge `bytes`. Neither waits nor reclaims bytes from other members.
    pub fn try_charge(&self, bytes: u64) -> bool {
        self.member.try_charge_ahead(&self.device, bytes, &())
    }

    /// Tries to charge `bytes` like [`Book::try_charge`], but as idle: charged and not in use yet.
    pub fn try_charge_ahead(&self, bytes: u64) -> bool {
        let idle = Ahead(self, bytes);
        let charged = self.member.try_charge_ahead(&self.device, bytes, &idle);
        if charged {
            self.show_reclaimable();
        }
        charged
    }

    /// Charges memory that the driver has already given to the process. The charge may exceed the
    /// group's limit.
    pub fn charge_over(&self, bytes: u64) {
        self.member.charge_unchecked(&self.device, bytes);
    }

    /// Uncharges `bytes` from the group. Call after the driver has freed them.
    pub fn uncharge(&self, bytes: u64) {
        if bytes > 0 {
            self.member.uncharge(&self.device, bytes);
        }
    }

    /// Uncharges `bytes` that were idle (charged, not in use).
    pub fn uncharge_idle(&self, bytes: u64) {
        if bytes > 0 {
            self.member
                .uncharge_idle(&self.device, bytes, &Ahead(self, bytes));
            self.show_reclaimable();
        }
    }

    /// Updates the group's peak with its present usage. Call after bytes charged in advance have
    /// come into use.
    pub fn note_usage(&self) {
        self.member.note_usage(&self.device);
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
            |bytes| self.member.publish(&self.device, category, bytes),
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
                self.member.note_use(&self.device, change.unsigned_abs());
            }
            self.show_reclaimable();
        }
    }

    fn count_idle(&self, change: i64) {
        self.idle_changes.fetch_add(1, Ordering::AcqRel);
        self.idle.fetch_add(change, Ordering::AcqRel);
        publish(
            || self.idle(),
            |bytes| self.member.publish_idle(&self.device, bytes),
        );
    }

    /// Publishes how many bytes this process could give back. Not called during a charge, because
    /// the call reads the whole group's figures.
    fn show_reclaimable(&self) {
        publish(
            || self.reclaimable(self.idle()),
            |bytes| self.member.publish_reclaimable(&self.device, bytes),
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

    /// Marks `bytes` of this process's charge as shared: other processes may hold this memory too.
    pub fn mark_shared(&self, bytes: u64) {
        self.member.mark_shared(&self.device, bytes as i64);
    }

    /// Returns whether other processes of the group have charged bytes on this GPU.
    pub fn has_others(&self) -> bool {
        let used = self.used.iter().map(|used| used.load(Ordering::Relaxed));
        let own = used.sum::<u64>() + self.idle();
        self.member.charged(&self.device) > own
    }

    /// Returns the bytes that a CUDA context takes on this GPU, as last measured by any process; 0
    /// before the first measurement.
    pub fn context_hint(&self) -> u64 {
        self.member.context_hint(&self.device)
    }

    pub fn set_context_hint(&self, bytes: u64) {
        self.member.set_context_hint(&self.device, bytes);
    }

    /// Returns whether the group counts the memory of CUDA contexts towards its usage.
    pub fn counts_contexts(&self) -> bool {
        self.member.counts_contexts()
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

//! The charges of this process on one GPU, and how many of the bytes are in use by category: the
//! figures that the process publishes in the group's ledger.
//!
//! The book knows no CUDA and gives no bytes back by itself. Spare blocks, pools, graphs and the
//! driver's part change its figures. [`Device`](super::device::Device) knows all of these, and so
//! what can be given back where the group is full.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpulimit_group::{Insistence, Member, MemberDevice, Refusal};
use gpulimit_ledger::{Category, Idle, Pressure};

use crate::abi::Device as Ordinal;

/// Bytes that stay charged beyond the driver's part while the process has a context: now and then
/// the driver takes a block in calls that are not expected to take memory.
pub const RESERVE: u64 = 4 << 20;

/// The most times that two figures are read again because a request of another thread fell between
/// them.
const SETTLING: u32 = 64;

/// The most times that a figure is published again because other threads change it.
const SHOWINGS: u32 = 1_000;

/// The figures of one GPU.
pub struct Book {
    /// The CUDA ordinal, by which the program names the GPU.
    pub ordinal: Ordinal,
    pub(super) member: &'static Member,
    pub(super) device: MemberDevice,
    used: [AtomicU64; Category::COUNT],
    /// Bytes of the driver's part in which small arrays lie: published as arrays.
    packed: AtomicU64,
    /// The sum of all bytes that were ever passed to [`Book::remove`].
    removed: AtomicU64,
    idle: AtomicI64,
    /// The number of changes of `idle`.
    idle_changes: AtomicU64,
    /// Idle bytes that no other request of this process can use: those that pools keep for their
    /// own reuse, those paid ahead for launches of graphs, and those set aside for contexts.
    headroom: AtomicI64,
}

impl Book {
    pub fn new(ordinal: Ordinal, member: &'static Member, device: MemberDevice) -> Book {
        Book {
            ordinal,
            member,
            device,
            used: Default::default(),
            packed: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            idle: AtomicI64::new(0),
            idle_changes: AtomicU64::new(0),
            headroom: AtomicI64::new(0),
        }
    }

    /// Returns the smallest limit of the group and its ancestors, in bytes; `u64::MAX` for none.
    pub fn max(&self) -> u64 {
        self.member.max(&self.device)
    }

    /// Returns the bytes that the group could still charge.
    pub fn group_free(&self) -> u64 {
        self.member.free(&self.device)
    }

    /// Returns the bytes that this process could still get: what is free in the group plus what is
    /// idle here, less what stays idle (the driver's reserve, the pools' headroom and what is set
    /// aside for contexts).
    pub fn free(&self) -> u64 {
        for _ in 0..SETTLING {
            if let Some(free) = self.settled_free() {
                return free;
            }
            std::thread::yield_now();
        }
        self.seen_free()
    }

    /// As [`Book::free`]; `None` where a request of another thread changes the charged and idle
    /// bytes meanwhile.
    pub(super) fn settled_free(&self) -> Option<u64> {
        // A request under way is undecided in the ledger, and it counts up `idle_changes`.
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

    /// Returns the idle bytes that no other request can use: the driver's reserve, the pools'
    /// headroom and what is set aside for contexts.
    fn stays_idle(&self) -> u64 {
        RESERVE + u64::try_from(self.headroom.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Charges `bytes` that are in use at once. Where the group is full, `pressure` says what can
    /// be given back.
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

    /// As [`Book::charge`], for bytes that are not in use yet: they become idle.
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

    /// Tries once to charge `bytes`.
    pub fn try_charge(&self, bytes: u64) -> bool {
        self.member.try_charge(&self.device, bytes)
    }

    /// As [`Book::try_charge`], for bytes that are not in use yet: they become idle.
    pub fn try_charge_ahead(&self, bytes: u64) -> bool {
        let idle = Ahead(self, bytes);
        let charged = self.member.try_charge_ahead(&self.device, bytes, &idle);
        if charged {
            self.show_reclaimable();
        }
        charged
    }

    /// Charges memory that the driver has already given out, even above the limit. Growth is
    /// refused until usage is below the limit again.
    pub fn charge_over(&self, bytes: u64) {
        self.member.charge_unchecked(&self.device, bytes);
    }

    /// Uncharges `bytes`. Call after the driver has freed them.
    pub fn uncharge(&self, bytes: u64) {
        if bytes > 0 {
            self.member.uncharge(&self.device, bytes);
        }
    }

    /// As [`Book::uncharge`], for idle bytes.
    pub fn uncharge_idle(&self, bytes: u64) {
        if bytes > 0 {
            self.member
                .uncharge_idle(&self.device, bytes, &Ahead(self, bytes));
            self.show_reclaimable();
        }
    }

    /// Notes the present usage for the group's peak, after bytes that were charged ahead have come
    /// into use.
    pub fn note_usage(&self) {
        self.member.note_usage(&self.device);
    }

    /// Records `bytes` that are charged as in use in `category`.
    pub fn add(&self, category: Category, bytes: u64) {
        self.shift(category, |used| used.wrapping_add(bytes));
    }

    /// Removes `bytes` that are no longer in use in `category`; they stay charged until
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
            || self.shown(category),
            |bytes| self.member.publish(&self.device, category, bytes),
        );
    }

    fn shown(&self, category: Category) -> u64 {
        let used = self.used(category);
        let packed = self.packed.load(Ordering::Acquire);
        match category {
            Category::Arrays => used + packed,
            Category::Driver => used.saturating_sub(packed),
            _ => used,
        }
    }

    fn used(&self, category: Category) -> u64 {
        let used = self.used.get(category as usize);
        used.map_or(0, |used| used.load(Ordering::Acquire))
    }

    /// Sets the driver's part, which went from `before` to `after` bytes.
    pub fn set_driver(&self, before: u64, after: u64) {
        if before != after {
            self.shift(Category::Driver, |_| after);
        }
    }

    /// Sets how many bytes of the driver's part small arrays lie in.
    pub fn set_packed(&self, bytes: u64) {
        if self.packed.swap(bytes, Ordering::AcqRel) != bytes {
            self.show(Category::Arrays);
            self.show(Category::Driver);
        }
    }

    /// Returns the named bytes: those in use here that NVML's figure for this process includes,
    /// without the driver's part.
    pub fn named(&self) -> u64 {
        Category::ALL
            .iter()
            .filter(|category| !matches!(category, Category::Managed | Category::Driver))
            .map(|category| self.used(*category))
            .sum()
    }

    /// Returns the sum of all bytes that were ever passed to [`Book::remove`].
    pub fn removed(&self) -> u64 {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns the idle bytes. The counter may be below zero for a moment, when one thread counts
    /// bytes as used before another has counted them as idle; that is shown as zero.
    fn idle(&self) -> u64 {
        u64::try_from(self.idle.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Records `bytes` that are charged as idle.
    pub fn add_idle(&self, bytes: u64) {
        self.adjust_idle(bytes as i64);
    }

    /// Removes `bytes` that were idle and have come into use.
    pub fn remove_idle(&self, bytes: u64) {
        self.adjust_idle((bytes as i64).wrapping_neg());
    }

    /// Changes the idle bytes by a signed amount.
    pub fn adjust_idle(&self, change: i64) {
        if change != 0 {
            self.count_idle(change);
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

    /// Publishes how much other members may ask this process for. Not called inside of a charge, as
    /// it reads the figures of the whole group.
    fn show_reclaimable(&self) {
        publish(
            || self.reclaimable(self.idle()),
            |bytes| self.member.publish_reclaimable(&self.device, bytes),
        );
    }

    /// Returns what this process could give back at most when so many bytes are idle.
    fn reclaimable(&self, idle: u64) -> u64 {
        // Pools and graphs may hold more than is in use; only the driver knows how much, so all of
        // their bytes count.
        let reserves = self.shown(Category::Pools) + self.shown(Category::Graphs);
        idle.saturating_sub(self.stays_idle()) + reserves
    }

    /// Changes the idle bytes that no other request can use by a signed amount.
    pub fn adjust_headroom(&self, change: i64) {
        if change != 0 {
            self.headroom.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Marks `bytes` of the charge as shareable with other processes.
    pub fn mark_shared(&self, bytes: u64) {
        self.member.mark_shared(&self.device, bytes as i64);
    }

    /// Returns whether other processes of the group have charged bytes on this GPU.
    pub fn has_others(&self) -> bool {
        let used = self.used.iter().map(|used| used.load(Ordering::Relaxed));
        let own = used.sum::<u64>() + self.idle();
        self.member.charged(&self.device) > own
    }

    /// Returns the bytes of a context on this GPU, as last measured by a process of the group; 0
    /// before the first measurement.
    pub fn context_hint(&self) -> u64 {
        self.member.context_hint(&self.device)
    }

    pub fn set_context_hint(&self, bytes: u64) {
        self.member.set_context_hint(&self.device, bytes);
    }

    /// Returns whether the group counts the memory of contexts.
    pub fn counts_contexts(&self) -> bool {
        self.member.counts_contexts()
    }
}

/// Publishes a figure in the ledger. Threads may publish in another order than they changed the
/// figure, so each thread publishes again until the figure stands still: the last thread publishes
/// the right one. Where it never stands still, the next change corrects what is published.
fn publish(figure: impl Fn() -> u64, show: impl Fn(u64)) {
    for _ in 0..SHOWINGS {
        let bytes = figure();
        show(bytes);
        if figure() == bytes {
            return;
        }
    }
}

/// Bytes that are charged ahead: idle from the moment in which the ledger grants them until it
/// takes them back.
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

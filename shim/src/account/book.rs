//! What this process has charged on one GPU, and how much of that is in use as what: the figures
//! that it shows in the group's ledger.
//!
//! The book knows no CUDA and gives nothing back by itself. What stands on it (spare blocks, pools,
//! graphs, the driver's part) changes its figures; [`Device`](super::device::Device) knows all of
//! these, and so what can be given back where the group is full.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpulimit_group::{Insistence, Member, MemberDevice, Refusal};
use gpulimit_ledger::{Category, Idle, Pressure};

use crate::abi::Device as Ordinal;

/// Kept charged beyond the driver's part while the process has a context: bytes. The driver also
/// takes a block now and then where nobody would expect it.
pub const RESERVE: u64 = 4 << 20;

/// Looks at two figures that another thread's request may change between them, at most.
const SETTLING: u32 = 64;

/// Times that a figure is shown which other threads change at once.
const SHOWINGS: u32 = 1_000;

/// The figures of one GPU.
pub struct Book {
    /// The CUDA ordinal: what the program calls it.
    pub ordinal: Ordinal,
    pub(super) member: &'static Member,
    pub(super) device: MemberDevice,
    used: [AtomicU64; Category::COUNT],
    /// Of what is used as the driver's part, what small arrays lie in: shown as theirs.
    packed: AtomicU64,
    /// Bytes that have lost their name since the beginning.
    removed: AtomicU64,
    idle: AtomicI64,
    /// How often `idle` was changed.
    idle_changes: AtomicU64,
    /// Of the idle bytes, those that pools keep for their own reuse, those paid ahead for launches
    /// of graphs, and those that contexts have set aside.
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

    /// The smallest limit on the group's path, bytes; `u64::MAX` for none.
    pub fn max(&self) -> u64 {
        self.member.max(&self.device)
    }

    /// What the group could still take, bytes.
    pub fn group_free(&self) -> u64 {
        self.member.free(&self.device)
    }

    /// What this process could still get, bytes: the group's free memory and what we hold charged
    /// but unused, less what stays so: the driver's reserve, the pools' headroom and what contexts
    /// have set aside.
    pub fn free(&self) -> u64 {
        for _ in 0..SETTLING {
            if let Some(free) = self.settled_free() {
                return free;
            }
            std::thread::yield_now();
        }
        self.seen_free()
    }

    /// As [`Book::free`]; `None` while a request of another thread changes what is charged and what
    /// is idle.
    pub(super) fn settled_free(&self) -> Option<u64> {
        // Such a request is undecided meanwhile, and leaves another number of changes.
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

    /// Of the idle bytes, those that nothing else can have: the driver's reserve, the pools'
    /// headroom and what contexts have set aside.
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

    /// As [`Book::charge`], of bytes that are not in use yet.
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

    /// As [`Book::try_charge`], of bytes that are not in use yet.
    pub fn try_charge_ahead(&self, bytes: u64) -> bool {
        let idle = Ahead(self, bytes);
        let charged = self.member.try_charge_ahead(&self.device, bytes, &idle);
        if charged {
            self.show_reclaimable();
        }
        charged
    }

    /// Charges memory that the driver has taken already, limit or not: growth stops until usage is
    /// below it again.
    pub fn charge_over(&self, bytes: u64) {
        self.member.charge_unchecked(&self.device, bytes);
    }

    /// Gives `bytes` back, after the driver has freed them.
    pub fn uncharge(&self, bytes: u64) {
        if bytes > 0 {
            self.member.uncharge(&self.device, bytes);
        }
    }

    /// As [`Book::uncharge`], of idle bytes.
    pub fn uncharge_idle(&self, bytes: u64) {
        if bytes > 0 {
            self.member
                .uncharge_idle(&self.device, bytes, &Ahead(self, bytes));
            self.show_reclaimable();
        }
    }

    /// Bytes that were charged ahead have come into use.
    pub fn note_usage(&self) {
        self.member.note_usage(&self.device);
    }

    /// `bytes` that are charged are now in use as `category`.
    pub fn add(&self, category: Category, bytes: u64) {
        self.shift(category, |used| used.wrapping_add(bytes));
    }

    /// `bytes` are no longer in use as `category`; they stay charged until [`Book::uncharge`].
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

    /// The driver's part went from `before` to `after` bytes.
    pub fn set_driver(&self, before: u64, after: u64) {
        if before != after {
            self.shift(Category::Driver, |_| after);
        }
    }

    /// So much of the driver's part is what small arrays lie in.
    pub fn set_packed(&self, bytes: u64) {
        if self.packed.swap(bytes, Ordering::AcqRel) != bytes {
            self.show(Category::Arrays);
            self.show(Category::Driver);
        }
    }

    /// Bytes in use that the driver shows for this process, without its own part.
    pub fn named(&self) -> u64 {
        Category::ALL
            .iter()
            .filter(|category| !matches!(category, Category::Managed | Category::Driver))
            .map(|category| self.used(*category))
            .sum()
    }

    /// Bytes that have lost their name since the beginning.
    pub fn removed(&self) -> u64 {
        self.removed.load(Ordering::Acquire)
    }

    /// Charged and unused bytes. Two threads may pass through a state below zero (used before it
    /// was entered): shown as zero.
    fn idle(&self) -> u64 {
        u64::try_from(self.idle.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// `bytes` are charged, but not in use.
    pub fn add_idle(&self, bytes: u64) {
        self.adjust_idle(bytes as i64);
    }

    /// `bytes` of the idle ones came into use.
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

    /// Shows how much others may ask for. Not inside of a charge: it takes a look at the whole
    /// group.
    fn show_reclaimable(&self) {
        publish(
            || self.reclaimable(self.idle()),
            |bytes| self.member.publish_reclaimable(&self.device, bytes),
        );
    }

    /// What this process could give back at most, with so many idle bytes.
    fn reclaimable(&self, idle: u64) -> u64 {
        // Of pools and graphs, which may hold more than is in use, only the driver knows how much
        // that is.
        let reserves = self.shown(Category::Pools) + self.shown(Category::Graphs);
        idle.saturating_sub(self.stays_idle()) + reserves
    }

    /// Changes the idle bytes that nothing else can have by a signed amount.
    pub fn adjust_headroom(&self, change: i64) {
        if change != 0 {
            self.headroom.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// `bytes` that are charged may be held by other processes, too.
    pub fn mark_shared(&self, bytes: u64) {
        self.member.mark_shared(&self.device, bytes as i64);
    }

    /// Whether other processes have charged something here.
    pub fn has_others(&self) -> bool {
        let used = self.used.iter().map(|used| used.load(Ordering::Relaxed));
        let own = used.sum::<u64>() + self.idle();
        self.member.charged(&self.device) > own
    }

    /// Bytes of a context here, as last measured by any process of the group; 0 when nobody has.
    pub fn context_hint(&self) -> u64 {
        self.member.context_hint(&self.device)
    }

    pub fn set_context_hint(&self, bytes: u64) {
        self.member.set_context_hint(&self.device, bytes);
    }

    /// Whether the group counts the memory of contexts.
    pub fn counts_contexts(&self) -> bool {
        self.member.counts_contexts()
    }
}

/// Shows a figure in the ledger. Threads may publish in another order than they changed it: the
/// last one to look puts it right.
///
/// Where they change it all the time, their next change puts right what is shown.
fn publish(figure: impl Fn() -> u64, show: impl Fn(u64)) {
    for _ in 0..SHOWINGS {
        let bytes = figure();
        show(bytes);
        if figure() == bytes {
            return;
        }
    }
}

/// Bytes that are charged ahead: idle from the moment in which they are granted to that in which
/// they are given back.
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

//! Memory that this process shares with other processes ([`shared`]). NVML may begin to attribute
//! memory of the other processes to this process.

use std::sync::atomic::Ordering;

use gpulimit_group::Undisturbed;
use gpulimit_ledger::Category;

use super::Device;
use crate::account::{BLOCK, Process, shared};
use crate::refusal::Refused;

impl Device {
    /// Returns the bytes in use on the GPU that NVML attributes to no process; `None` where NVML
    /// does not report usage.
    pub fn hidden(&self) -> Option<u64> {
        shared::hidden(&self.book.group)
    }

    /// Counts an allocation of another process that this process has opened.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an allocation of another process that this process has closed.
    pub fn closed(&self) {
        self.opened.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether NVML may begin to attribute memory of other processes to this process at any
    /// moment.
    #[inline]
    pub(super) fn may_inherit(&self) -> bool {
        self.process.vmm.imports() > 0 || self.opened.load(Ordering::Relaxed) > 0
    }

    /// Charges memory that NVML has come to attribute to this process, so that the next request
    /// counts it. Call where the thread holds no lock.
    #[inline]
    pub(super) fn watch_inherited(&self) {
        if self.may_inherit() {
            self.inherit();
        }
    }

    #[cold]
    #[inline(never)]
    fn inherit(&self) {
        let _undisturbed = Undisturbed::new();
        self.measure();
    }

    /// Refuses to import or open memory of another process while a group has more than its limit
    /// allows. Such memory is not charged as long as its owner holds it, and may be this process's
    /// at any time afterwards.
    pub fn may_import(&self, symbol: &'static str) -> Result<(), Refused> {
        self.watch_inherited();
        self.watch_others();
        match self.book.group.is_above() {
            true => Err(self.refuse(symbol, BLOCK, None)),
            false => Ok(()),
        }
    }

    /// Records that this process has released shared memory of `size` bytes. The charged part
    /// `bytes` stays charged while any process may hold the memory.
    ///
    /// `before`: the result of [`Device::hidden`] before the release.
    pub fn part_with(&self, bytes: u64, size: u64, before: Option<u64>) {
        let group = &self.book.group;
        group.mark_shared((bytes as i64).wrapping_neg());
        group.orphan(bytes);
        // NVML may now attribute memory of other processes to this process.
        if bytes == 0 || self.may_inherit() {
            self.measure();
        }
        self.settle(size, before);
    }

    /// Uncharges released shared memory that no process holds any more. Returns true if the group
    /// had charges for released memory.
    pub(super) fn settle_orphans(&self) -> bool {
        self.settle(0, None)
    }

    fn settle(&self, size: u64, before: Option<u64>) -> bool {
        let has_context = self.contexts.count() > 0;
        shared::settle(&self.book.group, has_context, size, before)
    }

    /// Charges memory of other processes that NVML now attributes to this process. Returns the
    /// charged bytes.
    ///
    /// `grown`: the bytes in NVML's figure that this process does not know of.
    pub(super) fn take_over(&self, grown: u64) -> u64 {
        let group = &self.book.group;
        let charge = |category| {
            move |bytes| {
                // The charge may exceed the limit for a moment, because the process that had the
                // memory before has not uncharged it yet.
                group.charge_unchecked(bytes);
                group.mark_shared(bytes as i64);
                self.book.add(category, bytes);
            }
        };
        let Process { vmm, openings, .. } = self.process;
        let orphans = || group.orphans();
        let mut taken = vmm.take_over(self.ordinal, grown, orphans, charge(Category::Vmm));
        if self.opened.load(Ordering::Acquire) > 0 {
            let left = grown - taken;
            taken += openings.take_over(self.ordinal, left, charge(Category::Linear));
        }
        if taken > 0 || group.orphaned() > 0 {
            self.settle_orphans();
        }
        taken
    }
}

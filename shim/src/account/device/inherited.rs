//! Memory that this process shares with other processes ([`shared`]). This process may release the
//! memory while others still hold it. NVML may also begin to attribute memory of other processes to
//! this process, although this process makes no CUDA call.

use std::sync::atomic::Ordering;

use gpulimit_ledger::Category;

use super::Device;
use crate::account::{Process, shared};

impl Device {
    /// Returns the bytes in use on the GPU that NVML attributes to no process; `None` where NVML
    /// does not report usage.
    pub fn hidden(&self) -> Option<u64> {
        shared::hidden(&self.book.device)
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

    /// Records that this process has released shared memory of `size` bytes, which other processes
    /// may still hold. `bytes`: the part that is charged to this process, either `size` or 0. These
    /// bytes stay charged to the group while any process may hold the memory. `before`: the result
    /// of [`Device::hidden`] before the release.
    pub fn part_with(&self, bytes: u64, size: u64, before: Option<u64>) {
        let (member, device) = (self.book.member, &self.book.device);
        member.mark_shared(device, (bytes as i64).wrapping_neg());
        member.orphan(device, bytes);
        // In two cases, NVML may now attribute more memory to this process: the released memory was
        // imported and not charged to this process (`bytes` is 0), or this process still has memory
        // of other processes open.
        if bytes == 0 || self.may_inherit() {
            self.measure();
        }
        shared::settle(member, device, size, before);
    }

    /// Uncharges shared memory that processes have released and that no process holds any more.
    /// Returns true when the group had charges for released memory.
    pub(super) fn settle_orphans(&self) -> bool {
        shared::settle(self.book.member, &self.book.device, 0, None)
    }

    /// Takes over the charge for memory of other processes that NVML now attributes to this
    /// process. `grown`: the bytes by which NVML's figure exceeds the memory that this process
    /// knows of. Returns how many of these bytes are memory of other processes; they are charged
    /// now.
    pub(super) fn take_over(&self, grown: u64) -> u64 {
        let (member, device) = (self.book.member, &self.book.device);
        let charge = |category| {
            move |bytes| {
                // The charge may exceed the limit for a moment, because the process that had the
                // memory before has not uncharged it yet.
                self.book.charge_over(bytes);
                self.book.mark_shared(bytes);
                self.book.add(category, bytes);
            }
        };
        let Process { vmm, openings, .. } = self.process;
        let orphans = || member.orphans(device);
        let mut taken = vmm.take_over(self.ordinal, grown, orphans, charge(Category::Vmm));
        if self.opened.load(Ordering::Acquire) > 0 {
            let left = grown - taken;
            taken += openings.take_over(self.ordinal, left, charge(Category::Linear));
        }
        if taken > 0 || member.orphaned(device) > 0 {
            self.settle_orphans();
        }
        taken
    }
}

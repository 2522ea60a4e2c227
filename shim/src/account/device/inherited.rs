//! Memory that this process shares with others: what it leaves to them, and what comes to it
//! without a call of its own ([`shared`]).

use std::sync::atomic::Ordering;

use gpulimit_ledger::Category;

use super::Device;
use crate::account::{Process, shared};

impl Device {
    /// Returns the bytes of the GPU that NVML attributes to no process; `None` where the driver
    /// does not tell.
    pub fn hidden(&self) -> Option<u64> {
        shared::hidden(&self.book.device)
    }

    /// Counts an allocation of another process that is opened here.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an allocation of another process that is closed here.
    pub fn closed(&self) {
        self.opened.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether memory of other processes may come to this process without a call of its
    /// own.
    #[inline]
    pub(super) fn may_inherit(&self) -> bool {
        self.process.vmm.imports() > 0 || self.opened.load(Ordering::Relaxed) > 0
    }

    /// Leaves memory of `size` bytes that other processes may hold to them. This process has
    /// charged `bytes` of it, which is either all of it or 0. These bytes stay charged to the group
    /// for as long as any process may hold the memory. `before` is [`Device::hidden`] from before
    /// this process let go of the memory.
    pub fn part_with(&self, bytes: u64, size: u64, before: Option<u64>) {
        let (member, device) = (self.book.member, &self.book.device);
        member.mark_shared(device, (bytes as i64).wrapping_neg());
        member.orphan(device, bytes);
        // Either the memory was imported and charged elsewhere, or its size was unknown; or this
        // process has another import of the same memory.
        if bytes == 0 || self.may_inherit() {
            self.measure();
        }
        shared::settle(member, device, size, before);
    }

    /// Gives back the charge of memory that has left its process and that no process holds. True
    /// when there was any such charge.
    pub(super) fn settle_orphans(&self) -> bool {
        shared::settle(self.book.member, &self.book.device, 0, None)
    }

    /// Takes over memory of other processes that has come to this process, when NVML shows `grown`
    /// bytes more for it than are known here. Charges the bytes that are such memory and returns
    /// them.
    pub(super) fn take_over(&self, grown: u64) -> u64 {
        let (member, device) = (self.book.member, &self.book.device);
        let charge = |category| {
            move |bytes| {
                // The process that held the memory before has not given its charge back.
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

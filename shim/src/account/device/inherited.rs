//! Memory that this process shares with other processes ([`shared`]). The process may leave such
//! memory to other processes. NVML may also begin to attribute such memory to this process,
//! although the process makes no CUDA call.

use std::sync::atomic::Ordering;

use gpulimit_ledger::Category;

use super::Device;
use crate::account::{Process, shared};

impl Device {
    /// Returns the bytes of the GPU that NVML attributes to no process; `None` where NVML does not
    /// tell.
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

    /// Returns whether NVML may begin to attribute memory of other processes to this process
    /// without a CUDA call of this process.
    #[inline]
    pub(super) fn may_inherit(&self) -> bool {
        self.process.vmm.imports() > 0 || self.opened.load(Ordering::Relaxed) > 0
    }

    /// Records that this process has let go of shared memory of `size` bytes, which other processes
    /// may still hold. This process has charged `bytes` for that memory: either `size` or 0. These
    /// bytes stay charged to the group for as long as any process may hold the memory. `before`:
    /// the result of [`Device::hidden`] before this process let go of the memory.
    pub fn part_with(&self, bytes: u64, size: u64, before: Option<u64>) {
        let (member, device) = (self.book.member, &self.book.device);
        member.mark_shared(device, (bytes as i64).wrapping_neg());
        member.orphan(device, bytes);
        // NVML may now attribute the memory to this process, in two cases. Where `bytes` is 0, the
        // memory was imported and either was charged to another process or had an unknown size. In
        // the other case, this process has a second import of the same memory.
        if bytes == 0 || self.may_inherit() {
            self.measure();
        }
        shared::settle(member, device, size, before);
    }

    /// Uncharges shared memory that a process has left behind and that no process holds any more.
    /// Returns true when there were charges for memory left behind.
    pub(super) fn settle_orphans(&self) -> bool {
        shared::settle(self.book.member, &self.book.device, 0, None)
    }

    /// Takes over memory of other processes that NVML now attributes to this process: NVML's figure
    /// is `grown` bytes larger than the memory that this process knows of. Finds out how many of
    /// these bytes are memory of other processes, charges that number and returns it.
    pub(super) fn take_over(&self, grown: u64) -> u64 {
        let (member, device) = (self.book.member, &self.book.device);
        let charge = |category| {
            move |bytes| {
                // The charge may exceed the limit for now, because the process that held the memory
                // before has not uncharged it yet.
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

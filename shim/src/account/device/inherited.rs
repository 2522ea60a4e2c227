//! Memory that this process and others have: what it leaves to them, and what comes to it without a
//! call of its own ([`shared`]).

use std::sync::atomic::Ordering;

use gpulimit_ledger::Category;

use super::Device;
use crate::account::{Process, shared};

impl Device {
    /// Bytes of the GPU that are in no process's figure; `None` where the driver does not tell.
    pub fn hidden(&self) -> Option<u64> {
        shared::hidden(&self.book.device)
    }

    /// One more allocation of another process here is open.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// One less.
    pub fn closed(&self) {
        self.opened.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether memory of others may come to this process without a call of its own.
    #[inline]
    pub(super) fn may_inherit(&self) -> bool {
        self.process.vmm.imports() > 0 || self.opened.load(Ordering::Relaxed) > 0
    }

    /// This process has no part any more in memory of `size` that others may hold and of which it
    /// has charged `bytes`: all or nothing. They stay charged as long as anybody may have it.
    /// [`Device::hidden`] was `before` that.
    pub fn part_with(&self, bytes: u64, size: u64, before: Option<u64>) {
        let (member, device) = (self.book.member, &self.book.device);
        member.mark_shared(device, (bytes as i64).wrapping_neg());
        member.orphan(device, bytes);
        // An import that was charged elsewhere, or without its size being known; or another one, of
        // the same memory.
        if bytes == 0 || self.may_inherit() {
            self.measure();
        }
        shared::settle(member, device, size, before);
    }

    /// Gives back what is charged in the group for memory that has left its process and that nobody
    /// needs. True when there was some.
    pub(super) fn settle_orphans(&self) -> bool {
        shared::settle(self.book.member, &self.book.device, 0, None)
    }

    /// The driver shows `grown` bytes more for this process than it knew: those of them that are
    /// memory of others which has come to it are charged as such, and returned.
    pub(super) fn take_over(&self, grown: u64) -> u64 {
        let (member, device) = (self.book.member, &self.book.device);
        let charge = |category| {
            move |bytes| {
                // Whoever had it before has not given its charge back.
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

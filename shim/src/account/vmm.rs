//! `cuMemCreate` memory: it lives as long as any handle reference or any mapping at addresses. What
//! is mapped into sparse and deferred arrays goes with its handle all the same (measured, H100,
//! 580.159.04).
//!
//! Every call that may end it is announced first and concluded after the driver's answer. With the
//! announcement that leaves neither reference nor mapping the memory loses its name (`leaving`), so
//! that it is never counted as named while the driver has freed it; it is uncharged when no
//! announced call is left (`gone`). Entries have numbers of their own as long as they are there,
//! because the driver may hand a handle value out again before the concluding call of its
//! predecessor has come back.
//!
//! Imported memory counts for somebody else until the driver shows it for this process
//! ([`Vmm::take_over`]).

mod handles;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::rounding::BLOCK;
use crate::abi::{AllocationHandle, Device as Ordinal, DevicePtr};
use handles::{Handles, Id};

struct Allocation {
    /// Of an import that was never mapped: not known, 0.
    size: u64,
    device: Ordinal,
    references: u32,
    mappings: u32,
    announced: u32,
    /// Counted as in use; not while it may be going.
    named: bool,
    /// Other processes may hold it, too.
    shared: bool,
    /// Imported, and not charged here.
    elsewhere: bool,
}

/// Memory that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Gone {
    pub device: Ordinal,
    pub bytes: u64,
    /// Its size, whoever is charged for it; 0 unknown.
    pub size: u64,
    /// Other processes may hold it, too.
    pub shared: bool,
}

impl Allocation {
    /// Charged here.
    fn bytes(&self) -> u64 {
        if self.elsewhere { 0 } else { self.size }
    }

    fn is_needed(&self) -> bool {
        self.references > 0 || self.mappings > 0
    }

    /// After an announcement. The device where the memory is shared and this process may be leaving
    /// it.
    fn announce(&mut self, leaving: &impl Fn(Ordinal, u64)) -> Option<Ordinal> {
        self.announced += 1;
        if self.named && !self.is_needed() {
            self.named = false;
            leaving(self.device, self.bytes());
            return self.shared.then_some(self.device);
        }
        None
    }

    /// After a reference or a mapping has come (back).
    fn keep(&mut self, staying: &impl Fn(Ordinal, u64)) {
        if !self.named {
            self.named = true;
            staying(self.device, self.bytes());
        }
    }
}

#[derive(Default)]
struct State {
    allocations: Handles<Allocation>,
    mappings: BTreeMap<DevicePtr, Id>,
}

impl State {
    /// Ends one announced call; the memory when it is gone with it.
    fn conclude(&mut self, id: Id) -> Option<Allocation> {
        let allocation = self.allocations.get_mut(id)?;
        allocation.announced = allocation.announced.saturating_sub(1);
        if allocation.is_needed() || allocation.announced > 0 {
            return None;
        }
        self.allocations.remove(id)
    }
}

/// A call under way that may end allocations.
#[must_use]
#[derive(Default)]
pub struct Announced {
    /// The device of memory that this process may be leaving to others.
    pub leaving: Option<Ordinal>,
    handle: Option<Id>,
    mappings: Vec<(DevicePtr, Id)>,
}

/// The physical allocations of a process.
#[derive(Default)]
pub struct Vmm {
    state: Mutex<State>,
    /// Imported allocations that are not charged here.
    imports: AtomicUsize,
}

impl Vmm {
    /// A new allocation with one reference.
    pub fn created(&self, handle: AllocationHandle, device: Ordinal, bytes: u64) {
        self.enter(handle, device, bytes, false);
    }

    /// An import with one reference, which is charged where it was exported.
    pub fn imported(&self, handle: AllocationHandle, device: Ordinal) {
        self.imports.fetch_add(1, Ordering::AcqRel);
        self.enter(handle, device, 0, true);
    }

    fn enter(&self, handle: AllocationHandle, device: Ordinal, size: u64, imported: bool) {
        let allocation = Allocation {
            size,
            device,
            references: 1,
            mappings: 0,
            announced: 0,
            named: true,
            shared: imported,
            elsewhere: imported,
        };
        self.state.lock().allocations.insert(handle, allocation);
    }

    /// Imported allocations that may come to this process without a call of its own.
    #[inline]
    pub fn imports(&self) -> usize {
        self.imports.load(Ordering::Relaxed)
    }

    /// Other processes may hold the memory of `handle` from now on. Device and bytes, the first
    /// time.
    pub fn exported(&self, handle: AllocationHandle) -> Option<(Ordinal, u64)> {
        let mut state = self.state.lock();
        let id = state.allocations.find(handle)?;
        let allocation = state.allocations.get_mut(id)?;
        let first = !std::mem::replace(&mut allocation.shared, true);
        first.then_some((allocation.device, allocation.bytes()))
    }

    /// The driver shows `grown` bytes more for this process: the imports that they may be are its
    /// own from now on. One that was never mapped has no known size: it may be what is left, as far
    /// as it is among the `orphans` of the group. Calls `charge` with their bytes, and returns
    /// them.
    pub fn take_over(
        &self,
        device: Ordinal,
        grown: u64,
        orphans: impl Fn() -> u64,
        charge: impl Fn(u64),
    ) -> u64 {
        if self.imports() == 0 || grown < BLOCK {
            return 0;
        }
        let mut taken = 0;
        let mut state = self.state.lock();
        let mut take = |allocation: &mut Allocation, bytes| {
            (allocation.elsewhere, allocation.size) = (false, bytes);
            self.imports.fetch_sub(1, Ordering::AcqRel);
            charge(bytes);
            taken += bytes;
            grown - taken
        };
        let mut left = grown;
        let mut unknown = None;
        for allocation in state.allocations.values_mut() {
            if allocation.device != device || !allocation.named {
                continue;
            }
            match (allocation.elsewhere, allocation.size) {
                (true, 0) => unknown = Some(allocation),
                (true, bytes) if bytes <= left => left = take(allocation, bytes),
                _ => {}
            }
        }
        if let Some(allocation) = unknown
            && left >= BLOCK
        {
            let bytes = left.min(orphans()) / BLOCK * BLOCK;
            if bytes > 0 {
                take(allocation, bytes);
            }
        }
        taken
    }

    /// One reference more; false when the handle is none of ours. `staying` as in [`Vmm::undone`].
    pub fn retained(&self, handle: AllocationHandle, staying: impl Fn(Ordinal, u64)) -> bool {
        let mut state = self.state.lock();
        let id = state.allocations.find(handle);
        let Some(allocation) = id.and_then(|id| state.allocations.get_mut(id)) else {
            return false;
        };
        allocation.references += 1;
        allocation.keep(&staying);
        true
    }

    /// A mapping at `address` now shows the memory of `handle`, up to the byte `end` of it.
    pub fn mapped(&self, address: DevicePtr, handle: AllocationHandle, end: u64) {
        let mut state = self.state.lock();
        let Some(id) = state.allocations.find(handle) else {
            return;
        };
        if let Some(allocation) = state.allocations.get_mut(id) {
            allocation.mappings += 1;
            if allocation.elsewhere {
                allocation.size = end.max(allocation.size);
            }
            state.mappings.insert(address, id);
        }
    }

    /// A reference is about to be released. Calls `leaving` with device and bytes of what may go
    /// with it.
    pub fn releasing(&self, handle: AllocationHandle, leaving: impl Fn(Ordinal, u64)) -> Announced {
        let mut state = self.state.lock();
        let id = state.allocations.find(handle);
        let mut left = None;
        if let Some(allocation) = id.and_then(|id| state.allocations.get_mut(id)) {
            allocation.references = allocation.references.saturating_sub(1);
            left = allocation.announce(&leaving);
        }
        Announced {
            leaving: left,
            handle: id,
            ..Announced::default()
        }
    }

    /// The mappings in `size` bytes at `address` are about to go. `leaving` as in
    /// [`Vmm::releasing`].
    pub fn unmapping(
        &self,
        address: DevicePtr,
        size: u64,
        leaving: impl Fn(Ordinal, u64),
    ) -> Announced {
        let mut state = self.state.lock();
        let end = address.saturating_add(size);
        let going: Vec<_> = state
            .mappings
            .range(address..end)
            .map(|(at, id)| (*at, *id))
            .collect();
        let mut left = None;
        for (at, id) in &going {
            state.mappings.remove(at);
            if let Some(allocation) = state.allocations.get_mut(*id) {
                allocation.mappings = allocation.mappings.saturating_sub(1);
                left = allocation.announce(&leaving).or(left);
            }
        }
        Announced {
            leaving: left,
            mappings: going,
            ..Announced::default()
        }
    }

    /// The driver did it. What ended.
    pub fn done(&self, announced: Announced) -> Vec<Gone> {
        let mut state = self.state.lock();
        let mappings = announced.mappings.into_iter().map(|(_, id)| id);
        let ids = announced.handle.into_iter().chain(mappings);
        let ended = ids.filter_map(|id| state.conclude(id)).map(|allocation| {
            if allocation.elsewhere {
                self.imports.fetch_sub(1, Ordering::AcqRel);
            }
            Gone {
                device: allocation.device,
                bytes: allocation.bytes(),
                size: allocation.size,
                shared: allocation.shared,
            }
        });
        ended.collect()
    }

    /// The driver refused: everything is as before. Calls `staying` with device and bytes of what
    /// was to go and stays.
    pub fn undone(&self, announced: Announced, staying: impl Fn(Ordinal, u64)) {
        let mut state = self.state.lock();
        if let Some(id) = announced.handle
            && let Some(allocation) = state.allocations.get_mut(id)
        {
            allocation.references += 1;
            allocation.announced -= 1;
            allocation.keep(&staying);
        }
        for (at, id) in announced.mappings {
            if let Some(allocation) = state.allocations.get_mut(id) {
                allocation.mappings += 1;
                allocation.announced -= 1;
                allocation.keep(&staying);
                state.mappings.insert(at, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignore(_: Ordinal, _: u64) {}

    fn done(vmm: &Vmm, announced: Announced) -> u64 {
        vmm.done(announced).iter().map(|gone| gone.bytes).sum()
    }

    #[test]
    fn a_mapping_keeps_released_memory() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        assert_eq!(done(&vmm, vmm.releasing(5, ignore)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 100, ignore)), 100);
    }

    #[test]
    fn retain_release_unmap_release_frees_once_at_the_end() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        assert!(vmm.retained(5, ignore));
        assert_eq!(done(&vmm, vmm.releasing(5, ignore)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 100, ignore)), 0);
        assert_eq!(done(&vmm, vmm.releasing(5, ignore)), 100);
        assert_eq!(done(&vmm, vmm.releasing(5, ignore)), 0);
    }

    #[test]
    fn two_ends_under_way_give_back_once_after_both() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        let release = vmm.releasing(5, ignore);
        let unmap = vmm.unmapping(0x1000, 100, ignore);
        assert_eq!(done(&vmm, unmap), 0, "the release has not come back yet");
        // The driver hands the value out again before the release is concluded here.
        vmm.created(5, 0, 40);
        assert_eq!(done(&vmm, release), 100);
        assert_eq!(done(&vmm, vmm.releasing(5, ignore)), 40);
    }

    #[test]
    fn a_refused_call_changes_nothing() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        vmm.mapped(0x2000, 5, 100);
        vmm.undone(vmm.unmapping(0x1000, 0x2000, ignore), ignore);
        vmm.undone(vmm.releasing(5, ignore), ignore);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 0x2000, ignore)), 0);
        assert_eq!(done(&vmm, vmm.releasing(5, ignore)), 100);
    }

    #[test]
    fn what_is_exported_may_be_left_to_others() {
        let vmm = Vmm::default();
        vmm.created(5, 3, 100);
        vmm.created(6, 3, 50);
        assert_eq!(vmm.exported(5), Some((3, 100)));
        assert_eq!(vmm.exported(5), None, "once");
        assert_eq!(vmm.exported(9), None, "none of ours");
        let releasing = vmm.releasing(6, ignore);
        assert_eq!(releasing.leaving, None);
        assert!(!vmm.done(releasing)[0].shared);
        let releasing = vmm.releasing(5, ignore);
        assert_eq!(releasing.leaving, Some(3));
        assert!(vmm.done(releasing)[0].shared);
    }

    #[test]
    fn what_may_go_has_no_name_until_it_is_gone_or_stays() {
        let vmm = Vmm::default();
        let named = std::cell::Cell::new(100u64);
        let leaving = |_: Ordinal, bytes| named.set(named.get() - bytes);
        let staying = |_: Ordinal, bytes| named.set(named.get() + bytes);
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        let release = vmm.releasing(5, leaving);
        assert_eq!(named.get(), 100, "the mapping keeps it");
        let unmap = vmm.unmapping(0x1000, 100, leaving);
        assert_eq!(
            named.get(),
            0,
            "both gone: the driver may free it at any moment"
        );
        vmm.undone(unmap, staying);
        assert_eq!(named.get(), 100);
        assert_eq!(done(&vmm, release), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 100, leaving)), 100);
        assert_eq!(named.get(), 0);
    }

    #[test]
    fn imports_are_taken_over_when_the_driver_shows_them() {
        let vmm = Vmm::default();
        let size = 100 * BLOCK;
        let charged = std::cell::Cell::new(0u64);
        let take = |device, grown, orphans| {
            let charge = |bytes| charged.set(charged.get() + bytes);
            vmm.take_over(device, grown, || orphans, charge)
        };
        vmm.imported(7, 0);
        assert_eq!(vmm.imports(), 1);
        assert_eq!(take(0, 5 * size, 0), 0, "no size is known");
        vmm.mapped(0x1000, 7, size);
        assert_eq!(take(1, 5 * size, size), 0, "another GPU's");
        assert_eq!(take(0, size - 1, size), 0, "too little for it");
        assert_eq!(take(0, 5 * size, size), size);
        assert_eq!(take(0, 5 * size, size), 0, "once");
        assert_eq!((vmm.imports(), charged.get()), (0, size));
        assert_eq!(done(&vmm, vmm.releasing(7, ignore)), 0);
        let unmapping = vmm.unmapping(0x1000, size, ignore);
        assert_eq!(unmapping.leaving, Some(0));
        let gone = vmm.done(unmapping);
        assert!(gone.iter().all(|gone| gone.shared && gone.bytes == size));
        assert_eq!(gone.len(), 1);
        // Another process has been charged for it to the end.
        vmm.imported(8, 0);
        let gone = vmm.done(vmm.releasing(8, ignore));
        assert_eq!((gone[0].bytes, gone[0].shared, vmm.imports()), (0, true, 0));
        // Never mapped: no more than what somebody has left.
        vmm.imported(9, 0);
        assert_eq!(take(0, 5 * size, size + 1), size);
        assert_eq!(done(&vmm, vmm.releasing(9, ignore)), size);
        // No more than has come.
        for handle in [10, 11] {
            vmm.imported(handle, 0);
            vmm.mapped(handle << 40, handle, BLOCK);
        }
        assert_eq!(take(0, 2 * BLOCK - 1, 0), BLOCK);
        assert_eq!(take(0, BLOCK, 0), BLOCK);
        // And no less.
        for handle in [12, 13] {
            vmm.imported(handle, 0);
            vmm.mapped(handle << 40, handle, BLOCK);
        }
        assert_eq!(take(0, 2 * BLOCK, 0), 2 * BLOCK);
    }

    #[test]
    fn foreign_handles_and_addresses_are_nobodys() {
        let vmm = Vmm::default();
        assert!(!vmm.retained(9, ignore));
        assert_eq!(done(&vmm, vmm.releasing(9, ignore)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x9000, 10, ignore)), 0);
    }
}

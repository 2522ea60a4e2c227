//! Physical memory of `cuMemCreate`. The memory lives while its handle has a reference or a mapping
//! gives it an address. Mappings into sparse and deferred arrays do not count (measured).
//!
//! Every call that may end an allocation is announced before the driver's call, and concluded
//! afterwards. The announcement removes an ending allocation from the bytes in use. The last
//! conclusion uncharges the allocation. Until then, the driver may reuse the handle, so each entry
//! also has a number.
//!
//! Imported memory stays charged to its exporter, until NVML attributes it to this process
//! ([`Vmm::take_over`]).

mod handles;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpulimit_base::obstacle::Obstacle;
use parking_lot::Mutex;

use super::rounding::BLOCK;
use crate::abi::{AllocationHandle, Device as Ordinal, DevicePtr};
use handles::{Handles, Id};

/// The ordinal of no device.
const NO_DEVICE: Ordinal = -1;

struct Allocation {
    /// The size of the allocation in bytes; 0 (unknown) for an import that was never mapped.
    size: u64,
    /// The device on which the allocation lies; `NO_DEVICE` for imported memory of the host and for
    /// multicast objects.
    device: Ordinal,
    references: u32,
    mappings: u32,
    announced: u32,
    /// Whether the allocation counts as in use. False while a call under way may end it.
    named: bool,
    /// Whether other processes may hold the memory too.
    shared: bool,
    /// Whether the allocation is imported, and another process is charged for it.
    elsewhere: bool,
    /// Why this process must not be suspended while it has the allocation.
    obstacle: Option<Obstacle>,
    /// How often the program has exported the allocation.
    exports: u32,
}

/// An allocation that has ended: it has neither references nor mappings.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Gone {
    pub device: Ordinal,
    pub bytes: u64,
    /// The size of the allocation in bytes, even if another process is charged for it; 0 when
    /// unknown.
    pub size: u64,
    /// Whether other processes may hold the memory too.
    pub shared: bool,
    /// Why this process could not be suspended while it had the allocation.
    pub obstacle: Option<Obstacle>,
    /// How often the program has exported the allocation.
    pub exports: u32,
}

impl Allocation {
    /// Returns the bytes of the allocation that are charged to this process.
    fn bytes(&self) -> u64 {
        if self.elsewhere { 0 } else { self.size }
    }

    /// Returns whether `device` has access to another device if it has access to the allocation.
    fn is_of_other(&self, device: Ordinal) -> bool {
        // A multicast object joins several devices.
        self.obstacle == Some(Obstacle::Multicast)
            || (self.device != NO_DEVICE && self.device != device)
    }

    fn is_needed(&self) -> bool {
        self.references > 0 || self.mappings > 0
    }

    /// Announces a call that may end the allocation. Returns the device if this process gives up
    /// shared memory.
    fn announce(&mut self, leaving: &impl Fn(Ordinal, u64)) -> Option<Ordinal> {
        self.announced += 1;
        if self.named && !self.is_needed() {
            self.named = false;
            leaving(self.device, self.bytes());
            return self.shared.then_some(self.device);
        }
        None
    }

    /// Counts the allocation as in use again, after a new reference or mapping, or after a refused
    /// removal.
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
    /// Concludes an announced call. Returns the allocation when it has ended.
    fn conclude(&mut self, id: Id) -> Option<Allocation> {
        let allocation = self.allocations.get_mut(id)?;
        allocation.announced = allocation.announced.saturating_sub(1);
        if allocation.is_needed() || allocation.announced > 0 {
            return None;
        }
        self.allocations.remove(id)
    }
}

/// A call that may end allocations. It was announced to the account before the driver was called.
#[must_use]
#[derive(Default)]
pub struct Announced {
    /// The device of shared memory, if the call may give up this process's last reference or
    /// mapping.
    pub leaving: Option<Ordinal>,
    handle: Option<Id>,
    mappings: Vec<(DevicePtr, Id)>,
}

/// The physical allocations (`cuMemCreate`) of a process.
#[derive(Default)]
pub struct Vmm {
    state: Mutex<State>,
    /// The number of imported allocations that are not charged to this process.
    imports: AtomicUsize,
}

impl Vmm {
    /// Records a new allocation with one reference to its handle.
    pub fn created(&self, handle: AllocationHandle, device: Ordinal, bytes: u64) {
        self.enter(handle, Some(device), bytes, None);
    }

    /// Records an imported allocation with one reference. The process that exported it is charged
    /// for it. `None` as the device: it is memory of the host.
    pub fn imported(&self, handle: AllocationHandle, device: Option<Ordinal>) {
        if device.is_some() {
            self.imports.fetch_add(1, Ordering::AcqRel);
        }
        self.enter(handle, device, 0, Some(Obstacle::ImportedMemory));
    }

    /// Records a new multicast object with one reference. It takes no memory.
    pub fn multicast(&self, handle: AllocationHandle) {
        self.enter(handle, None, 0, Some(Obstacle::Multicast));
    }

    fn enter(
        &self,
        handle: AllocationHandle,
        device: Option<Ordinal>,
        size: u64,
        obstacle: Option<Obstacle>,
    ) {
        let imported = device.is_some() && obstacle.is_some();
        let allocation = Allocation {
            size,
            device: device.unwrap_or(NO_DEVICE),
            references: 1,
            mappings: 0,
            announced: 0,
            named: true,
            shared: imported,
            elsewhere: imported,
            obstacle,
            exports: 0,
        };
        self.state.lock().allocations.insert(handle, allocation);
    }

    /// Returns the number of imported allocations that are not charged to this process. NVML may
    /// attribute them to this process.
    #[inline]
    pub fn imports(&self) -> usize {
        self.imports.load(Ordering::Relaxed)
    }

    /// Counts an export: other processes may hold the memory of `handle`. Returns its device, and
    /// its bytes if it was not shared before.
    pub fn exported(&self, handle: AllocationHandle) -> Option<(Ordinal, u64)> {
        let mut state = self.state.lock();
        let id = state.allocations.find(handle)?;
        let allocation = state.allocations.get_mut(id)?;
        allocation.exports = allocation.exports.saturating_add(1);
        let first = !std::mem::replace(&mut allocation.shared, true);
        Some((
            allocation.device,
            if first { allocation.bytes() } else { 0 },
        ))
    }

    /// Counts an export no more that the driver has refused. Returns false if the allocation has
    /// ended meanwhile, and its exports with it.
    pub fn unexported(&self, handle: AllocationHandle) -> bool {
        let mut state = self.state.lock();
        let id = state.allocations.find(handle);
        let allocation = id.and_then(|id| state.allocations.get_mut(id));
        allocation.is_some_and(|allocation| {
            let counted = allocation.exports > 0;
            allocation.exports -= u32::from(counted);
            counted
        })
    }

    /// Charges imports that NVML now attributes to this process. Returns the sum of the bytes
    /// passed to `charge`.
    ///
    /// `grown`: the growth of NVML's figure, into which the imports must fit. An import of unknown
    /// size takes the remaining bytes, up to the group's `orphans`.
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

    /// Adds a reference to the allocation of `handle`. Returns false when the handle is unknown.
    /// Calls `staying` like [`Vmm::undone`].
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

    /// Records that the memory of `handle`, up to its byte `end`, was mapped at `address`.
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

    /// Returns whether memory of another device than `device` is mapped in an address range of
    /// `size` bytes that begins at `address`.
    pub fn is_mapped_of_other(&self, address: DevicePtr, size: u64, device: Ordinal) -> bool {
        let mut state = self.state.lock();
        let State {
            allocations,
            mappings,
        } = &mut *state;
        let mut mappings = mappings.range(address..address.saturating_add(size));
        mappings.any(|(_, id)| {
            let allocation = allocations.get_mut(*id);
            allocation.is_some_and(|one| one.is_of_other(device))
        })
    }

    /// Returns the number of mappings in an address range of `size` bytes that begins at `address`.
    pub fn mappings_in(&self, address: DevicePtr, size: u64) -> usize {
        let state = self.state.lock();
        let range = address..address.saturating_add(size);
        state.mappings.range(range).count()
    }

    /// Announces a call that releases a reference. Calls `leaving` with the device and bytes of an
    /// allocation that may end.
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

    /// Announces a call that removes the mappings in an address range of `size` bytes that begins
    /// at `address`. Calls `leaving` like [`Vmm::releasing`].
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

    /// Concludes an announced call that the driver has carried out. Returns the allocations that
    /// have ended.
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
                obstacle: allocation.obstacle,
                exports: allocation.exports,
            }
        });
        ended.collect()
    }

    /// Takes back the announcement of a refused call. Calls `staying` for each allocation that is
    /// in use again.
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
    fn memory_with_two_references_is_freed_once_at_the_end() {
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
    fn two_concurrent_ends_give_back_once() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        let release = vmm.releasing(5, ignore);
        let unmap = vmm.unmapping(0x1000, 100, ignore);
        assert_eq!(done(&vmm, unmap), 0, "the release is not concluded yet");
        // The driver hands out the same handle again before the release is concluded.
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
    fn exported_memory_may_be_left_to_others() {
        let vmm = Vmm::default();
        vmm.created(5, 3, 100);
        vmm.created(6, 3, 50);
        assert_eq!(vmm.exported(5), Some((3, 100)));
        assert_eq!(vmm.exported(5), Some((3, 0)), "a later export");
        assert_eq!(vmm.exported(5), Some((3, 0)));
        assert!(vmm.unexported(5), "the driver has refused one");
        assert_eq!(vmm.exported(9), None, "an unknown handle");
        assert!(!vmm.unexported(9) && !vmm.unexported(6));
        let releasing = vmm.releasing(6, ignore);
        assert_eq!(releasing.leaving, None);
        assert!(!vmm.done(releasing)[0].shared);
        let releasing = vmm.releasing(5, ignore);
        assert_eq!(releasing.leaving, Some(3));
        let gone = vmm.done(releasing)[0];
        assert!(gone.shared);
        assert_eq!((gone.exports, gone.obstacle), (2, None));
    }

    #[test]
    fn obstacles_end_with_the_last_reference_or_mapping() {
        let vmm = Vmm::default();
        vmm.imported(5, None);
        vmm.multicast(6);
        assert_eq!(vmm.imports(), 0, "neither takes memory of a GPU");
        assert!(vmm.retained(5, ignore));
        vmm.mapped(0x1000, 6, 100);
        for handle in [5, 6] {
            assert_eq!(vmm.done(vmm.releasing(handle, ignore)), []);
        }
        let gone = vmm.done(vmm.releasing(5, ignore));
        assert_eq!(gone[0].obstacle, Some(Obstacle::ImportedMemory));
        let gone = vmm.done(vmm.unmapping(0x1000, 100, ignore));
        assert_eq!(gone[0].obstacle, Some(Obstacle::Multicast));
        assert_eq!((gone[0].bytes, gone[0].shared), (0, false));
    }

    #[test]
    fn announced_memory_is_not_named() {
        let vmm = Vmm::default();
        let named = std::cell::Cell::new(100u64);
        let leaving = |_: Ordinal, bytes| named.set(named.get() - bytes);
        let staying = |_: Ordinal, bytes| named.set(named.get() + bytes);
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5, 100);
        let release = vmm.releasing(5, leaving);
        assert_eq!(named.get(), 100, "the mapping keeps the memory alive");
        let unmap = vmm.unmapping(0x1000, 100, leaving);
        assert_eq!(named.get(), 0, "the driver may free the memory now");
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
        vmm.imported(7, Some(0));
        assert_eq!(vmm.imports(), 1);
        assert_eq!(take(0, 5 * size, 0), 0, "the size of the import is unknown");
        vmm.mapped(0x1000, 7, size);
        assert_eq!(take(1, 5 * size, size), 0, "the import is on another GPU");
        assert_eq!(take(0, size - 1, size), 0, "the growth is too small");
        assert_eq!(take(0, 5 * size, size), size);
        assert_eq!(take(0, 5 * size, size), 0, "each import is taken over once");
        assert_eq!((vmm.imports(), charged.get()), (0, size));
        assert_eq!(done(&vmm, vmm.releasing(7, ignore)), 0);
        let unmapping = vmm.unmapping(0x1000, size, ignore);
        assert_eq!(unmapping.leaving, Some(0));
        let gone = vmm.done(unmapping);
        assert!(gone.iter().all(|gone| gone.shared && gone.bytes == size));
        assert_eq!(gone.len(), 1);
        // This import was never charged to this process.
        vmm.imported(8, Some(0));
        let gone = vmm.done(vmm.releasing(8, ignore));
        assert_eq!((gone[0].bytes, gone[0].shared, vmm.imports()), (0, true, 0));
        // An import that was never mapped takes over at most the bytes that the group has charged
        // as orphans.
        vmm.imported(9, Some(0));
        assert_eq!(take(0, 5 * size, size + 1), size);
        assert_eq!(done(&vmm, vmm.releasing(9, ignore)), size);
        // The imports that are taken over are no larger than the growth of NVML's figure.
        for handle in [10, 11] {
            vmm.imported(handle, Some(0));
            vmm.mapped(handle << 40, handle, BLOCK);
        }
        assert_eq!(take(0, 2 * BLOCK - 1, 0), BLOCK);
        assert_eq!(take(0, BLOCK, 0), BLOCK);
        // Two imports whose sizes fit into the growth are both taken over.
        for handle in [12, 13] {
            vmm.imported(handle, Some(0));
            vmm.mapped(handle << 40, handle, BLOCK);
        }
        assert_eq!(take(0, 2 * BLOCK, 0), 2 * BLOCK);
    }

    #[test]
    fn unknown_handles_and_addresses_are_ignored() {
        let vmm = Vmm::default();
        assert!(!vmm.retained(9, ignore));
        assert_eq!(done(&vmm, vmm.releasing(9, ignore)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x9000, 10, ignore)), 0);
    }
}

//! `cuMemCreate` memory: it lives as long as any handle reference or any mapping.
//!
//! Every call that may end it is announced first and concluded after the driver's answer; the bytes go back when no reference, no mapping
//! and no announced call is left. Entries have numbers of their own, because the driver may hand a handle value out again before the
//! concluding call of its predecessor has come back.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::abi::{AllocationHandle, Device as Ordinal, DevicePtr};

type Id = u64;

struct Allocation {
    handle: AllocationHandle,
    device: Ordinal,
    bytes: u64,
    references: u32,
    mappings: u32,
    announced: u32,
}

#[derive(Default)]
struct State {
    next: Id,
    allocations: HashMap<Id, Allocation>,
    by_handle: HashMap<AllocationHandle, Id>,
    mappings: BTreeMap<DevicePtr, Id>,
}

impl State {
    /// Ends one announced call; the device and bytes when the memory is gone with it.
    fn conclude(&mut self, id: Id) -> Option<(Ordinal, u64)> {
        let allocation = self.allocations.get_mut(&id)?;
        allocation.announced = allocation.announced.saturating_sub(1);
        if allocation.references > 0 || allocation.mappings > 0 || allocation.announced > 0 {
            return None;
        }
        let (handle, gone) = (allocation.handle, (allocation.device, allocation.bytes));
        self.allocations.remove(&id);
        if self.by_handle.get(&handle) == Some(&id) {
            self.by_handle.remove(&handle);
        }
        Some(gone)
    }
}

/// A call under way that may end allocations.
#[must_use]
pub struct Announced {
    handle: Option<(AllocationHandle, Id)>,
    mappings: Vec<(DevicePtr, Id)>,
}

/// The physical allocations of a process.
#[derive(Default)]
pub struct Vmm(Mutex<State>);

impl Vmm {
    /// A new allocation with one reference.
    pub fn created(&self, handle: AllocationHandle, device: Ordinal, bytes: u64) {
        let mut state = self.0.lock();
        let id = state.next;
        state.next += 1;
        state.allocations.insert(
            id,
            Allocation {
                handle,
                device,
                bytes,
                references: 1,
                mappings: 0,
                announced: 0,
            },
        );
        state.by_handle.insert(handle, id);
    }

    /// One reference more, if the handle is one of ours.
    pub fn retained(&self, handle: AllocationHandle) {
        let mut state = self.0.lock();
        let Some(id) = state.by_handle.get(&handle).copied() else {
            return;
        };
        if let Some(allocation) = state.allocations.get_mut(&id) {
            allocation.references += 1;
        }
    }

    /// A mapping at `address` now shows the memory of `handle`.
    pub fn mapped(&self, address: DevicePtr, handle: AllocationHandle) {
        let mut state = self.0.lock();
        let Some(id) = state.by_handle.get(&handle).copied() else {
            return;
        };
        if let Some(allocation) = state.allocations.get_mut(&id) {
            allocation.mappings += 1;
            state.mappings.insert(address, id);
        }
    }

    /// A reference is about to be released.
    pub fn releasing(&self, handle: AllocationHandle) -> Announced {
        let mut state = self.0.lock();
        let id = state.by_handle.get(&handle).copied();
        if let Some(allocation) = id.and_then(|id| state.allocations.get_mut(&id)) {
            allocation.references = allocation.references.saturating_sub(1);
            allocation.announced += 1;
        }
        Announced {
            handle: id.map(|id| (handle, id)),
            mappings: Vec::new(),
        }
    }

    /// The mappings in `size` bytes at `address` are about to go.
    pub fn unmapping(&self, address: DevicePtr, size: u64) -> Announced {
        let mut state = self.0.lock();
        let end = address.saturating_add(size);
        let leaving: Vec<_> = state
            .mappings
            .range(address..end)
            .map(|(at, id)| (*at, *id))
            .collect();
        for (at, id) in &leaving {
            state.mappings.remove(at);
            if let Some(allocation) = state.allocations.get_mut(id) {
                allocation.mappings = allocation.mappings.saturating_sub(1);
                allocation.announced += 1;
            }
        }
        Announced {
            handle: None,
            mappings: leaving,
        }
    }

    /// The driver did it. Calls `gone` with device and bytes of what ended.
    pub fn done(&self, announced: Announced, mut gone: impl FnMut(Ordinal, u64)) {
        let mut state = self.0.lock();
        let ids = announced
            .handle
            .iter()
            .map(|(_, id)| *id)
            .chain(announced.mappings.iter().map(|(_, id)| *id));
        for id in ids {
            if let Some((device, bytes)) = state.conclude(id) {
                gone(device, bytes);
            }
        }
    }

    /// The driver refused: everything is as before.
    pub fn undone(&self, announced: Announced) {
        let mut state = self.0.lock();
        if let Some((_, id)) = announced.handle
            && let Some(allocation) = state.allocations.get_mut(&id)
        {
            allocation.references += 1;
            allocation.announced -= 1;
        }
        for (at, id) in announced.mappings {
            if let Some(allocation) = state.allocations.get_mut(&id) {
                allocation.mappings += 1;
                allocation.announced -= 1;
                state.mappings.insert(at, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(vmm: &Vmm, announced: Announced) -> u64 {
        let mut bytes = 0;
        vmm.done(announced, |_, gone| bytes += gone);
        bytes
    }

    #[test]
    fn a_mapping_keeps_released_memory() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5);
        assert_eq!(done(&vmm, vmm.releasing(5)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 100)), 100);
    }

    #[test]
    fn retain_release_unmap_release_frees_once_at_the_end() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5);
        vmm.retained(5);
        assert_eq!(done(&vmm, vmm.releasing(5)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 100)), 0);
        assert_eq!(done(&vmm, vmm.releasing(5)), 100);
        assert_eq!(done(&vmm, vmm.releasing(5)), 0);
    }

    #[test]
    fn two_ends_under_way_give_back_once_after_both() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5);
        let release = vmm.releasing(5);
        let unmap = vmm.unmapping(0x1000, 100);
        assert_eq!(done(&vmm, unmap), 0, "the release has not come back yet");
        // The driver hands the value out again before the release is concluded here.
        vmm.created(5, 0, 40);
        assert_eq!(done(&vmm, release), 100);
        assert_eq!(done(&vmm, vmm.releasing(5)), 40);
    }

    #[test]
    fn a_refused_call_changes_nothing() {
        let vmm = Vmm::default();
        vmm.created(5, 0, 100);
        vmm.mapped(0x1000, 5);
        vmm.mapped(0x2000, 5);
        vmm.undone(vmm.unmapping(0x1000, 0x2000));
        vmm.undone(vmm.releasing(5));
        assert_eq!(done(&vmm, vmm.releasing(5)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x1000, 0x2000)), 100);
    }

    #[test]
    fn foreign_handles_and_addresses_are_nobodys() {
        let vmm = Vmm::default();
        vmm.retained(9);
        assert_eq!(done(&vmm, vmm.releasing(9)), 0);
        assert_eq!(done(&vmm, vmm.unmapping(0x9000, 10)), 0);
    }
}

//! Virtual memory management of the simulated driver: address reservations, physical allocations
//! and mappings.
//!
//! The module [`crate::shared`] handles exported allocations.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::driver::driver;
use crate::machine::BLOCK;
use crate::shared::Shared;
use crate::space::space;
use crate::{Outcome, Status, checkpoint};

/// `CUmemAllocationProp`, as bytes.
pub type Properties = [u8; 32];

struct Physical {
    bytes: u64,
    /// The GPU of the allocation; `None` for host memory.
    device: Option<usize>,
    properties: Properties,
    handles: u32,
    mappings: u32,
    /// The exported memory of the allocation; `None` for memory that only this process can hold.
    shared: Option<Shared>,
}

#[derive(Clone, Copy)]
struct Mapping {
    bytes: u64,
    handle: u64,
    access: u64,
}

#[derive(Default)]
struct State {
    reserved: BTreeMap<u64, u64>,
    physical: HashMap<u64, Physical>,
    mapped: BTreeMap<u64, Mapping>,
    last_handle: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn aligned(bytes: u64) -> Outcome<()> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK) {
        Err(Status::INVALID_VALUE)
    } else {
        Ok(())
    }
}

/// Reserves addresses.
///
/// # Errors
/// `INVALID_VALUE` for a size that is not a multiple of the granularity, `OUT_OF_MEMORY`.
pub fn reserve(bytes: u64, alignment: u64) -> Outcome<u64> {
    aligned(bytes)?;
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(Status::INVALID_VALUE);
    }
    let address = space().take(bytes, alignment)?;
    state().reserved.insert(address, bytes);
    Ok(address)
}

/// Frees reserved device addresses.
///
/// # Errors
/// `INVALID_VALUE` when the range is not exactly one reservation, or still has mapped memory.
pub fn unreserve(address: u64, bytes: u64) -> Outcome<()> {
    let mut guard = state();
    let state = &mut *guard;
    let end = address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
    if state.reserved.get(&address) != Some(&bytes)
        || state.mapped.range(address..end).next().is_some()
    {
        return Err(Status::INVALID_VALUE);
    }
    state.reserved.remove(&address);
    space().give(address, bytes);
    Ok(())
}

/// Takes physical memory and returns the handle of the new allocation.
///
/// # Errors
/// `INVALID_VALUE` for an unaligned size, `OUT_OF_MEMORY`.
pub fn create(device: Option<usize>, bytes: u64, properties: Properties) -> Outcome<u64> {
    aligned(bytes)?;
    match device {
        Some(device) => driver()?.take(device, bytes)?,
        None => driver()?.take_host(on_host(&properties, bytes)),
    }
    Ok(state().add(Physical {
        bytes,
        device,
        properties,
        handles: 1,
        mappings: 0,
        shared: None,
    }))
}

impl State {
    fn add(&mut self, physical: Physical) -> u64 {
        self.last_handle += 1;
        self.physical.insert(self.last_handle, physical);
        self.last_handle
    }

    fn physical(&mut self, handle: u64) -> Outcome<&mut Physical> {
        self.physical.get_mut(&handle).ok_or(Status::INVALID_VALUE)
    }

    /// Frees the allocation with this handle if it has neither handles nor mappings left.
    fn settle(&mut self, handle: u64) {
        let is_needed = |physical: &Physical| physical.handles > 0 || physical.mappings > 0;
        if self.physical.get(&handle).is_none_or(is_needed) {
            return;
        }
        if let Some(physical) = self.physical.remove(&handle) {
            physical.give();
        }
    }
}

impl Physical {
    fn give(self) {
        if let Some(shared) = self.shared {
            shared.let_go();
        } else if let Ok(driver) = driver() {
            match self.device {
                Some(device) => driver.give(device, self.bytes),
                None => driver.give_host(on_host(&self.properties, self.bytes)),
            }
        }
    }
}

/// Returns `bytes` for memory of the host, and 0 for a multicast object, which names no location.
fn on_host(properties: &Properties, bytes: u64) -> u64 {
    if properties[8] == 0 { 0 } else { bytes }
}

/// Exports an allocation as a file descriptor that other processes can import.
///
/// # Errors
/// `INVALID_VALUE` for handles that are unknown, imported, or not for export.
pub fn export(handle: u64) -> Outcome<i32> {
    let mut guard = state();
    let physical = guard.physical(handle)?;
    // An allocation can only be exported as a file descriptor if it has the lowest bit of
    // `requestedHandleTypes`.
    if physical.handles == 0 || physical.properties[4] & 1 == 0 {
        return Err(Status::INVALID_VALUE);
    }
    if let Some(shared) = &physical.shared {
        return shared.descriptor();
    }
    let (shared, descriptor) =
        Shared::export(physical.device, physical.bytes, &physical.properties)?;
    physical.shared = Some(shared);
    Ok(descriptor)
}

/// Imports an allocation from a file descriptor as a new handle, even in the exporting process
/// (measured). The descriptor stays open.
///
/// # Errors
/// `INVALID_VALUE` for any other descriptor, `OUT_OF_MEMORY`.
pub fn import(descriptor: i32) -> Outcome<u64> {
    let (shared, properties) = Shared::import(descriptor)?;
    Ok(state().add(Physical {
        bytes: shared.bytes,
        device: shared.device,
        properties,
        handles: 1,
        mappings: 0,
        shared: Some(shared),
    }))
}

/// Releases one reference to an allocation's handle.
///
/// # Errors
/// `INVALID_VALUE` for an unknown handle, or one without references left.
pub fn release(handle: u64) -> Outcome<()> {
    let mut guard = state();
    let state = &mut *guard;
    let physical = state.physical(handle)?;
    physical.handles = physical
        .handles
        .checked_sub(1)
        .ok_or(Status::INVALID_VALUE)?;
    state.settle(handle);
    Ok(())
}

/// Returns the handle of the allocation that is mapped at this address, with one more reference.
///
/// # Errors
/// `INVALID_VALUE` without such an allocation.
pub fn retain(address: u64) -> Outcome<u64> {
    let mut guard = state();
    let state = &mut *guard;
    let (_, mapping) = state.mapping(address)?;
    state.physical(mapping.handle)?.handles += 1;
    Ok(mapping.handle)
}

impl State {
    fn mapping(&self, address: u64) -> Outcome<(u64, Mapping)> {
        self.mapped
            .range(..=address)
            .next_back()
            .filter(|(start, mapping)| address < **start + mapping.bytes)
            .map(|(start, mapping)| (*start, *mapping))
            .ok_or(Status::INVALID_VALUE)
    }
}

/// Maps the memory of a handle at reserved addresses.
///
/// # Errors
/// - `INVALID_VALUE`: a part of an allocation, or a range outside one reservation.
/// - `ALREADY_MAPPED`.
pub fn map(address: u64, bytes: u64, offset: u64, handle: u64) -> Outcome<()> {
    aligned(bytes)?;
    let mut guard = state();
    let state = &mut *guard;
    if offset != 0 || state.physical(handle)?.handles == 0 || state.physical(handle)?.bytes != bytes
    {
        return Err(Status::INVALID_VALUE);
    }
    let end = address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
    let (start, length) = state
        .reserved
        .range(..=address)
        .next_back()
        .ok_or(Status::INVALID_VALUE)?;
    if end > start + length {
        return Err(Status::INVALID_VALUE);
    }
    let before = state.mapped.range(..end).next_back();
    if before.is_some_and(|(start, mapping)| start + mapping.bytes > address) {
        return Err(Status::ALREADY_MAPPED);
    }
    state.mapped.insert(
        address,
        Mapping {
            bytes,
            handle,
            access: 0,
        },
    );
    state.physical(handle)?.mappings += 1;
    Ok(())
}

/// Checks that the memory of a handle can be mapped.
///
/// # Errors
/// `INVALID_VALUE` for a handle without references.
pub fn check(handle: u64) -> Outcome<()> {
    match state().physical(handle)?.handles {
        0 => Err(Status::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// Unmaps a range of addresses.
///
/// # Errors
/// `INVALID_VALUE` when the range does not consist of whole mappings.
pub fn unmap(address: u64, bytes: u64) -> Outcome<()> {
    let mut guard = state();
    let state = &mut *guard;
    let whole = state.whole(address, bytes)?;
    for start in whole {
        if let Some(mapping) = state.mapped.remove(&start) {
            space().forget(start, mapping.bytes);
            if let Ok(physical) = state.physical(mapping.handle) {
                physical.mappings -= 1;
            }
            state.settle(mapping.handle);
        }
    }
    Ok(())
}

impl State {
    /// Returns the start addresses of the mappings that make up this range.
    fn whole(&self, address: u64, bytes: u64) -> Outcome<Vec<u64>> {
        let end = address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
        let mut next = address;
        let mut starts = Vec::new();
        while next < end {
            let mapping = self.mapped.get(&next).ok_or(Status::INVALID_VALUE)?;
            starts.push(next);
            next += mapping.bytes;
        }
        if next == end && !starts.is_empty() {
            Ok(starts)
        } else {
            Err(Status::INVALID_VALUE)
        }
    }
}

/// Sets the access flags of a range of addresses, for this GPU or, if `None`, for the host.
///
/// # Errors
/// `INVALID_VALUE` when the range does not consist of whole mappings.
pub fn set_access(address: u64, bytes: u64, access: u64, gpu: Option<usize>) -> Outcome<()> {
    let mut guard = state();
    let state = &mut *guard;
    for start in state.whole(address, bytes)? {
        if let Some(mapping) = state.mapped.get_mut(&start) {
            mapping.access = access;
            let home = state
                .physical
                .get(&mapping.handle)
                .and_then(|one| one.device);
            if access != 0 {
                checkpoint::note_access(gpu, home);
            }
        }
    }
    Ok(())
}

/// Returns the access flags of the mapping at an address.
///
/// # Errors
/// `INVALID_VALUE` when no memory is mapped there.
pub fn access(address: u64) -> Outcome<u64> {
    Ok(state().mapping(address)?.1.access)
}

/// Returns the properties with which the allocation of a handle was created.
///
/// # Errors
/// `INVALID_VALUE` for an unknown handle.
pub fn properties(handle: u64) -> Outcome<Properties> {
    Ok(state().physical(handle)?.properties)
}

/// Finds the mapping that contains an address. Returns its start, its bytes and its GPU.
pub fn find(address: u64) -> Option<(u64, u64, Option<usize>)> {
    let mut guard = state();
    let state = &mut *guard;
    let (start, mapping) = state.mapping(address).ok()?;
    let device = state.physical.get(&mapping.handle)?.device;
    Some((start, mapping.bytes, device))
}

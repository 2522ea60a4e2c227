//! The driver's functions for virtual memory management.

use gpulimit_sim::driver::driver;
use gpulimit_sim::machine::BLOCK;
use gpulimit_sim::{Outcome, Status, vmm};

use crate::device;
use gpulimit_sim::abi::{In, Out};

pub fn reserve(
    address: Out<u64>,
    bytes: usize,
    alignment: usize,
    _wanted: u64,
    flags: u64,
) -> Outcome<()> {
    driver()?;
    if flags != 0 || address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    address.put(vmm::reserve(bytes as u64, alignment as u64)?)
}

pub fn unreserve(address: u64, bytes: usize) -> Outcome<()> {
    driver()?;
    vmm::unreserve(address, bytes as u64)
}

/// Reads the location at offset 8 of a `CUmemAllocationProp`. Returns the location's GPU; `None`
/// for host memory.
fn place(prop: In<u8>) -> Outcome<Option<usize>> {
    let [kind, id] = prop.field::<[i32; 2]>(8).get()?;
    let ordinal = match kind {
        1 => id,
        // A location of type 6 is a locality domain. The lowest byte of its id is the number of the
        // GPU.
        6 => id & 0xff,
        2 | 3 => return Ok(None),
        _ => return Err(Status::INVALID_VALUE),
    };
    device::index(ordinal).map(Some)
}

pub fn create(handle: Out<u64>, bytes: usize, prop: In<u8>, flags: u64) -> Outcome<()> {
    driver()?;
    if flags != 0 || handle.is_null() || prop.field::<i32>(0).get()? != 1 {
        return Err(Status::INVALID_VALUE);
    }
    handle.put(vmm::create(
        place(prop)?,
        bytes as u64,
        prop.field(0).get()?,
    )?)
}

/// Makes a multicast object, which takes no GPU memory. Nothing else of multicast is modelled.
pub fn create_multicast(handle: Out<u64>, prop: In<u8>) -> Outcome<()> {
    driver()?;
    let (devices, bytes) = (prop.field::<u32>(0).get()?, prop.field(8).get()?);
    if handle.is_null() || devices == 0 {
        return Err(Status::INVALID_VALUE);
    }
    handle.put(vmm::create(None, bytes, [0; 32])?)
}

pub fn release(handle: u64) -> Outcome<()> {
    driver()?;
    vmm::release(handle)
}

pub fn map(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Outcome<()> {
    driver()?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    vmm::map(address, bytes as u64, offset as u64, handle)
}

pub fn unmap(address: u64, bytes: usize) -> Outcome<()> {
    driver()?;
    vmm::unmap(address, bytes as u64)
}

/// Sets the access flags of a mapping, for all GPUs. The last descriptor in `access` decides.
pub fn set_access(address: u64, bytes: usize, access: In<u8>, count: usize) -> Outcome<()> {
    driver()?;
    for index in 0..count {
        let (gpu, flags) = access_at(access, index)?;
        vmm::set_access(address, bytes as u64, flags as u64, gpu)?;
    }
    Ok(())
}

/// Reads the GPU, if it is one, and the flags of an element of an array of `CUmemAccessDesc`.
pub fn access_at(array: In<u8>, index: usize) -> Outcome<(Option<usize>, i32)> {
    let [kind, id, flags] = array.field::<[i32; 3]>(index * 12).get()?;
    let gpu = (kind == 1).then(|| device::index(id)).transpose()?;
    Ok((gpu, flags))
}

pub fn access(flags: Out<u64>, _location: In<[i32; 2]>, address: u64) -> Outcome<()> {
    driver()?;
    flags.put(vmm::access(address)?)
}

pub fn granularity(bytes: Out<usize>, prop: In<u8>, option: i32) -> Outcome<()> {
    driver()?;
    place(prop)?;
    if !matches!(option, 0 | 1) {
        return Err(Status::INVALID_VALUE);
    }
    bytes.put(BLOCK as usize)
}

pub fn properties(prop: Out<[u8; 32]>, handle: u64) -> Outcome<()> {
    driver()?;
    prop.put(vmm::properties(handle)?)
}

/// Exports an allocation as a file descriptor (kind 1), the only kind of handle that the simulated
/// driver exports.
pub fn export(shareable: Out<i32>, handle: u64, kind: i32, flags: u64) -> Outcome<()> {
    driver()?;
    match (kind, flags) {
        _ if shareable.is_null() => Err(Status::INVALID_VALUE),
        (1, 0) => shareable.put(vmm::export(handle)?),
        (_, 0) => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Imports an allocation from a file descriptor. The program passes the number of the descriptor in
/// a parameter of pointer type.
pub fn import(handle: Out<u64>, shareable: usize, kind: i32) -> Outcome<()> {
    driver()?;
    match kind {
        _ if handle.is_null() => Err(Status::INVALID_VALUE),
        1 => handle.put(vmm::import(shareable as i32)?),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

pub fn retain(handle: Out<u64>, address: u64) -> Outcome<()> {
    driver()?;
    if handle.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    handle.put(vmm::retain(address)?)
}

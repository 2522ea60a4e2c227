//! The driver's functions for pinned host memory: ordinary host memory, which takes no GPU memory.
//! Where the GPUs share the host's memory, it counts there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulimit_sim::{Outcome, Status, capture, host};

use crate::context::here;
use gpulimit_sim::abi::Out;

struct Pinned {
    bytes: usize,
    flags: u32,
    /// Whether `cuMemHostAlloc` allocated the range. If not, the program allocated the memory
    /// itself and registered it as pinned.
    allocated: bool,
}

static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

fn pinned() -> MutexGuard<'static, BTreeMap<usize, Pinned>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds the pinned range of host memory that contains an address. Returns the start and the bytes
/// of that range.
pub fn find(address: usize) -> Option<(usize, usize)> {
    let all = pinned();
    let (start, range) = all.range(..=address).next_back()?;
    (address < start + range.bytes).then_some((*start, range.bytes))
}

pub fn allocate_plain(pointer: Out<usize>, bytes: usize) -> Outcome<()> {
    allocate(pointer, bytes, 0)
}

pub fn allocate(pointer: Out<usize>, bytes: usize, flags: u32) -> Outcome<()> {
    let context = here()?;
    if bytes == 0 || pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    let rounded = bytes
        .checked_next_multiple_of(4096)
        .ok_or(Status::OUT_OF_MEMORY)?;
    // SAFETY: the alignment is a power of two, and the size is a multiple of it.
    let address = unsafe { libc::aligned_alloc(4096, rounded) } as usize;
    if address == 0 {
        return Err(Status::OUT_OF_MEMORY);
    }
    pinned().insert(
        address,
        Pinned {
            bytes,
            flags,
            allocated: true,
        },
    );
    host::pin(context, address, bytes as u64)?;
    pointer.put(address)
}

/// The 32-bit variant of `cuMemAllocHost`.
pub fn allocate_v1(pointer: Out<usize>, bytes: u32) -> Outcome<()> {
    allocate(pointer, bytes as usize, 0)
}

pub fn free(address: usize) -> Outcome<()> {
    here()?;
    capture::unsafe_call()?;
    let mut all = pinned();
    match all.get(&address) {
        Some(range) if range.allocated => {}
        _ => return Err(Status::INVALID_VALUE),
    }
    all.remove(&address);
    host::unpin(address)?;
    // SAFETY: the address came from `aligned_alloc`, and was just taken out of the list.
    unsafe { libc::free(address as *mut libc::c_void) };
    Ok(())
}

pub fn register(address: usize, bytes: usize, flags: u32) -> Outcome<()> {
    here()?;
    if address == 0 || bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    let end = address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
    let mut all = pinned();
    if all
        .range(..end)
        .next_back()
        .is_some_and(|(start, range)| start + range.bytes > address)
    {
        return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    all.insert(
        address,
        Pinned {
            bytes,
            flags,
            allocated: false,
        },
    );
    Ok(())
}

pub fn unregister(address: usize) -> Outcome<()> {
    here()?;
    capture::unsafe_call()?;
    let mut all = pinned();
    match all.get(&address) {
        Some(range) if !range.allocated => {}
        _ => return Err(Status::HOST_MEMORY_NOT_REGISTERED),
    }
    all.remove(&address);
    Ok(())
}

pub fn device_pointer(dptr: Out<u64>, address: usize, _flags: u32) -> Outcome<()> {
    here()?;
    find(address).ok_or(Status::INVALID_VALUE)?;
    dptr.put(address as u64)
}

pub fn flags(flags: Out<u32>, address: usize) -> Outcome<()> {
    here()?;
    flags.put(pinned().get(&address).ok_or(Status::INVALID_VALUE)?.flags)
}

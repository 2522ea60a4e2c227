//! The driver's functions for linear memory and attributes of pointers.

use gpulimit_sim::blocks::{self, Found};
use gpulimit_sim::driver::driver;
use gpulimit_sim::host as machine_host;
use gpulimit_sim::machine::BLOCK;
use gpulimit_sim::work::{self, Name};
use gpulimit_sim::{Outcome, Status, capture, checkpoint, device as gpu, grant, ipc, process, vmm};

use crate::context::here;
use crate::{device, host};
use gpulimit_sim::abi::{In, Out};

/// Returns the free and the total bytes of the current context's GPU.
fn numbers() -> Outcome<(u64, u64)> {
    let index = here()?.device();
    checkpoint::check_present()?;
    let machine = driver()?.machine;
    process::scan(machine, false);
    let total = gpu::capacity(machine, index);
    if machine_host::is_shared(machine) {
        return Ok((machine_host::free(machine).min(total), total));
    }
    Ok((
        total.saturating_sub(grant::used(machine, index) * BLOCK),
        total,
    ))
}

pub fn info(free: Out<usize>, total: Out<usize>) -> Outcome<()> {
    let numbers = numbers()?;
    free.put(numbers.0 as usize)?;
    total.put(numbers.1 as usize)
}

/// The 32-bit variant of `cuMemGetInfo`. It reports a larger number of bytes as the largest 32-bit
/// number.
pub fn info_v1(free: Out<u32>, total: Out<u32>) -> Outcome<()> {
    let numbers = numbers()?;
    free.put(u32::try_from(numbers.0).unwrap_or(u32::MAX))?;
    total.put(u32::try_from(numbers.1).unwrap_or(u32::MAX))
}

pub fn allocate(dptr: Out<u64>, bytes: usize) -> Outcome<()> {
    let context = here()?;
    if dptr.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    dptr.put(blocks::allocate(context, bytes as u64)?)
}

/// The 32-bit variant of `cuMemAlloc`. The address of its memory fits into 32 bits.
pub fn allocate_v1(dptr: Out<u32>, bytes: u32) -> Outcome<()> {
    let context = here()?;
    if dptr.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    dptr.put(blocks::allocate_low(context, bytes.into())? as u32)
}

/// Returns the pitch of memory with this width, and the bytes that `height` rows with this pitch
/// take.
fn rows(width: usize, height: usize, element: u32) -> Outcome<(usize, u64)> {
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(Status::INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(512)
        .ok_or(Status::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(Status::OUT_OF_MEMORY)?;
    Ok((row, bytes as u64))
}

pub fn allocate_pitch(
    dptr: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Outcome<()> {
    let context = here()?;
    if dptr.is_null() || pitch.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let (row, bytes) = rows(width, height, element)?;
    capture::unsafe_call()?;
    dptr.put(blocks::allocate(context, bytes)?)?;
    pitch.put(row)
}

pub fn allocate_pitch_v1(
    dptr: Out<u32>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
    element: u32,
) -> Outcome<()> {
    let context = here()?;
    if dptr.is_null() || pitch.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let (row, bytes) = rows(width as usize, height as usize, element)?;
    capture::unsafe_call()?;
    dptr.put(blocks::allocate_low(context, bytes)? as u32)?;
    pitch.put(row as u32)
}

pub fn allocate_managed(dptr: Out<u64>, bytes: usize, flags: u32) -> Outcome<()> {
    let context = here()?;
    if dptr.is_null() || !matches!(flags, 1 | 2) {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    dptr.put(blocks::allocate_managed(context, bytes as u64)?)
}

pub fn free(dptr: u64) -> Outcome<()> {
    driver()?;
    capture::unsafe_call()?;
    if dptr != 0 {
        work::wait_for_current();
    }
    // All work of the current context has ended. So memory freed on any stream is free at once.
    blocks::free(dptr, Name::LEGACY)
}

pub fn free_v1(dptr: u32) -> Outcome<()> {
    free(dptr.into())
}

pub fn address_range(base: Out<u64>, bytes: Out<usize>, dptr: u64) -> Outcome<()> {
    driver()?;
    let (start, size) = match (blocks::find(dptr), mapped(dptr)) {
        (Some(found), _) => (found.start, found.bytes),
        (None, Some((start, size, _))) => (start, size),
        (None, None) => return Err(Status::NOT_FOUND),
    };
    base.put_if(start);
    bytes.put_if(size as usize);
    Ok(())
}

/// Returns the start, bytes and GPU of the mapping at an address, including mappings opened from
/// other processes.
fn mapped(address: u64) -> Option<(u64, u64, Option<usize>)> {
    vmm::find(address).or_else(|| ipc::find(address))
}

pub fn ipc_get(handle: Out<ipc::Handle>, address: u64) -> Outcome<()> {
    here()?;
    if handle.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    checkpoint::check_present()?;
    handle.put(ipc::export(address)?)
}

/// `cuIpcOpenMemHandle`. The flag `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS` is required; no other flag
/// exists.
pub fn ipc_open(dptr: Out<u64>, handle: ipc::Handle, flags: u32) -> Outcome<()> {
    let context = here()?;
    if dptr.is_null() || flags != 1 {
        return Err(Status::INVALID_VALUE);
    }
    dptr.put(ipc::open(context, handle)?)
}

pub fn ipc_close(address: u64) -> Outcome<()> {
    here()?;
    ipc::close(address)
}

/// What the driver knows about a pointer to any kind of memory.
struct Pointer {
    found: Option<Found>,
    mapped: Option<(u64, u64, Option<usize>)>,
    host: Option<(usize, usize)>,
}

impl Pointer {
    fn look(address: u64) -> Option<Pointer> {
        let found = blocks::find(address);
        let mapped = if found.is_none() {
            mapped(address)
        } else {
            None
        };
        let host = host::find(address as usize);
        let known = found.is_some() || mapped.is_some() || host.is_some();
        known.then_some(Pointer {
            found,
            mapped,
            host,
        })
    }

    fn device(&self) -> Option<usize> {
        match (&self.found, self.mapped) {
            (Some(found), _) => found
                .context
                .map(|context| context.device())
                .or_else(|| found.pool?.device()),
            (None, Some((_, _, device))) => device,
            (None, None) => Some(here().ok()?.device()),
        }
    }

    fn range(&self) -> (u64, u64) {
        match (&self.found, self.mapped, self.host) {
            (Some(found), ..) => (found.start, found.bytes),
            (None, Some((start, bytes, _)), _) => (start, bytes),
            (None, None, Some((start, bytes))) => (start as u64, bytes as u64),
            (None, None, None) => (0, 0),
        }
    }

    fn put(&self, data: Out<u8>, attribute: i32, address: u64) -> Outcome<()> {
        match attribute {
            1 => {
                let context = self.found.and_then(|found| found.context);
                data.cast()
                    .put(context.map_or(0, |context| context.handle()))
            }
            2 => data.cast().put(if self.host.is_some() { 1u32 } else { 2 }),
            3 => data.cast().put(address),
            4 => match self.host.is_some() || self.found.is_some_and(|found| found.managed) {
                true => data.cast().put(address),
                false => Err(Status::INVALID_VALUE),
            },
            6 | 14..=16 | 19..=21 => data.cast().put(0u32),
            7 => data.cast().put(self.range().0),
            8 => data
                .cast()
                .put(self.found.is_some_and(|found| found.managed)),
            9 => data
                .cast()
                .put(self.device().map_or(Ok(-2), device::ordinal)?),
            10 => data.cast().put(false),
            11 => data.cast().put(self.range().0),
            12 => data.cast().put(self.range().1 as usize),
            13 => data.cast().put(true),
            17 => {
                let pool = self.found.and_then(|found| found.pool);
                data.cast().put(pool.map_or(0, |pool| pool.handle()))
            }
            18 => data
                .cast()
                .put(self.range().1.next_multiple_of(BLOCK) as usize),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

pub fn pointer_attribute(data: Out<u8>, attribute: i32, address: u64) -> Outcome<()> {
    driver()?;
    Pointer::look(address)
        .ok_or(Status::INVALID_VALUE)?
        .put(data, attribute, address)
}

/// Writes all attributes that the program asks for. An unknown pointer is not an error in this
/// function: its attributes are 0.
pub fn pointer_attributes(
    count: u32,
    attributes: In<i32>,
    data: In<Out<u8>>,
    address: u64,
) -> Outcome<()> {
    driver()?;
    let pointer = Pointer::look(address);
    for index in 0..count as usize {
        let (attribute, data) = (attributes.at(index).get()?, data.at(index).get()?);
        let answered = pointer
            .as_ref()
            .is_some_and(|pointer| pointer.put(data, attribute, address).is_ok());
        if !answered {
            match attribute {
                1 | 3 | 4 | 7 | 11 | 12 | 17 | 18 => data.cast().put(0u64)?,
                9 => data.cast().put(-2i32)?,
                8 | 10 | 13 => data.cast().put(false)?,
                _ => data.cast().put(0u32)?,
            }
        }
    }
    Ok(())
}

pub fn set_pointer_attribute(_value: In<u8>, _attribute: i32, address: u64) -> Outcome<()> {
    driver()?;
    Pointer::look(address)
        .map(drop)
        .ok_or(Status::INVALID_VALUE)
}

fn managed(address: u64) -> Outcome<()> {
    driver()?;
    match blocks::find(address) {
        Some(found) if found.managed => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub fn advise(address: u64, _count: usize, _advice: i32, _device: i32) -> Outcome<()> {
    managed(address)
}

pub fn advise_v2(address: u64, _count: usize, _advice: i32, _location: u64) -> Outcome<()> {
    managed(address)
}

pub fn prefetch(
    address: u64,
    _count: usize,
    _device: i32,
    _stream: usize,
    _twin: bool,
) -> Outcome<()> {
    managed(address)
}

pub fn prefetch_v2(
    address: u64,
    _count: usize,
    _location: u64,
    _flags: u32,
    _stream: usize,
    _twin: bool,
) -> Outcome<()> {
    managed(address)
}

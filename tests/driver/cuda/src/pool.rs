//! The driver's functions for stream-ordered memory and pools.

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulimit_sim::driver::driver;
use gpulimit_sim::pool::Pool;
use gpulimit_sim::stream::Stream;
use gpulimit_sim::work::Name;
use gpulimit_sim::{Outcome, Status, blocks, capture, checkpoint, context};

use crate::device;
use crate::stream::implicit;
use crate::vmm::access_at;
use gpulimit_sim::abi::{In, Out, crash};

pub fn allocate(dptr: Out<u64>, bytes: usize, handle: usize, twin: bool) -> Outcome<()> {
    let driver = driver()?;
    if dptr.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let context = match Stream::from_handle(handle)? {
        Some(stream) if stream.captures()? => {
            return dptr.put(capture::allocate(stream, bytes as u64)?);
        }
        Some(stream) => stream.context,
        None => implicit(context::current()?, handle, twin)?,
    };
    let pool = *driver.current_pool(context.device());
    dptr.put(pool.allocate(bytes as u64, Name { handle, twin })?)
}

pub fn allocate_from(
    dptr: Out<u64>,
    bytes: usize,
    pool: usize,
    handle: usize,
    twin: bool,
) -> Outcome<()> {
    driver()?;
    if dptr.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let pool = Pool::from_handle(pool)?;
    match Stream::from_handle(handle)? {
        Some(stream) if stream.captures()? => {
            return dptr.put(capture::allocate(stream, bytes as u64)?);
        }
        Some(_) => {}
        None => drop(implicit(context::current()?, handle, twin)?),
    }
    dptr.put(pool.allocate(bytes as u64, Name { handle, twin })?)
}

pub fn free(dptr: u64, handle: usize, twin: bool) -> Outcome<()> {
    driver()?;
    match Stream::from_handle(handle)? {
        Some(stream) if stream.captures()? => capture::free(stream, dptr),
        _ => blocks::free_async(dptr, Name { handle, twin }),
    }
}

/// Returns the GPU of a `CUmemLocation`; `None` for a location on the host.
fn location(location: [i32; 2]) -> Outcome<Option<usize>> {
    match location {
        [1, ordinal] => device::index(ordinal)
            .map(Some)
            .map_err(|_| Status::INVALID_VALUE),
        [2 | 3, _] => Ok(None),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Values of `CUmemAllocationType`: pinned and managed memory.
const PINNED: i32 = 1;
const MANAGED: i32 = 2;

pub fn create(pool: Out<usize>, props: In<u8>) -> Outcome<()> {
    driver()?;
    let place = props.field(8).get()?;
    let made = match props.field::<i32>(0).get()? {
        PINNED => Pool::make(location(place)?),
        MANAGED => {
            // A managed pool cannot be exported or have a maximum size (measured, H200,
            // 580.159.04).
            if props.field::<i32>(4).get()? != 0 || props.field::<u64>(24).get()? != 0 {
                return Err(Status::INVALID_VALUE);
            }
            Pool::make_managed(managed_for(place)?)
        }
        _ => return Err(Status::INVALID_VALUE),
    };
    pool.put(made.handle())
}

/// Returns the GPU of a managed pool. The real driver also allows other locations, or none.
fn managed_for(place: [i32; 2]) -> Outcome<usize> {
    match place {
        [1, _] => location(place)?.ok_or(Status::INVALID_VALUE),
        [0 | 2..=4, _] => Ok(context::current().map_or(0, |context| context.device())),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The default pools of managed memory. The key of a pool is its location: kind and id.
static MANAGED_DEFAULTS: Mutex<Vec<([i32; 2], &'static Pool)>> = Mutex::new(Vec::new());

fn managed_defaults() -> MutexGuard<'static, Vec<([i32; 2], &'static Pool)>> {
    MANAGED_DEFAULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn managed_default(place: [i32; 2]) -> Outcome<&'static Pool> {
    let mut pools = managed_defaults();
    if let Some((_, pool)) = pools.iter().find(|(known, _)| *known == place) {
        return Ok(*pool);
    }
    let pool = Pool::make_managed(managed_for(place)?);
    pools.push((place, pool));
    Ok(pool)
}

pub fn destroy(pool: usize) -> Outcome<()> {
    let driver = driver()?;
    let pool = Pool::from_handle(pool)?;
    let is_default = |(_, default): &([i32; 2], &Pool)| std::ptr::eq(*default, pool);
    if managed_defaults().iter().any(is_default) {
        return Err(Status::INVALID_VALUE);
    }
    if let Some(device) = pool.device() {
        let gpu = driver.gpu(device);
        if std::ptr::eq(pool, gpu.default_pool) {
            return Err(Status::INVALID_VALUE);
        }
        let mut current = driver.current_pool(device);
        if std::ptr::eq(*current, pool) {
            *current = gpu.default_pool;
        }
    }
    pool.destroy()
}

/// Exports a pool as a file descriptor (kind 1). It names no pool: nothing of the pool's memory is
/// shared here.
pub fn export(shareable: Out<i32>, pool: usize, kind: i32, flags: u64) -> Outcome<()> {
    driver()?;
    let pool = Pool::from_handle(pool)?;
    if shareable.is_null() || kind != 1 || flags != 0 || pool.is_managed() {
        return Err(Status::INVALID_VALUE);
    }
    let file = File::open("/dev/null").map_err(|_| Status::OPERATING_SYSTEM)?;
    shareable.put(file.into_raw_fd())
}

/// Imports a pool from a file descriptor, whose number is a parameter of pointer type. It takes no
/// GPU memory, as another process has the memory.
pub fn import(pool: Out<usize>, shareable: usize, kind: i32, flags: u64) -> Outcome<()> {
    driver()?;
    let is_open = Path::new(&format!("/proc/self/fd/{shareable}")).exists();
    if pool.is_null() || kind != 1 || flags != 0 || !is_open {
        return Err(Status::INVALID_VALUE);
    }
    pool.put(Pool::make(None).handle())
}

/// Imports an allocation of an imported pool.
pub fn import_pointer(dptr: Out<u64>, pool: usize, data: In<u8>) -> Outcome<()> {
    driver()?;
    data.get()?;
    let pool = Pool::from_handle(pool)?;
    if dptr.is_null() || pool.device().is_some() {
        return Err(Status::INVALID_VALUE);
    }
    let stream = Name {
        handle: 0,
        twin: false,
    };
    dptr.put(pool.allocate(1, stream)?)
}

pub fn trim(pool: usize, keep: usize) -> Outcome<()> {
    driver()?;
    capture::unsafe_call()?;
    Pool::from_handle(pool)?.trim(keep as u64)
}

pub fn set_attribute(pool: usize, attribute: i32, value: In<u8>) -> Outcome<()> {
    driver()?;
    capture::unsafe_call()?;
    let value = match attribute {
        1..=3 => u64::from(value.field::<u32>(0).get()?),
        _ => value.field::<u64>(0).get()?,
    };
    Pool::from_handle(pool)?.set_attribute(attribute, value)
}

pub fn attribute(pool: usize, attribute: i32, value: Out<u8>) -> Outcome<()> {
    driver()?;
    capture::unsafe_call()?;
    if Pool::was_destroyed(pool) {
        // The real `cuMemPoolGetAttribute` returns 1 or crashes for a destroyed pool (measured with
        // RMM's tests, H200, 580.159.03). The simulated driver always crashes.
        crash();
    }
    let answer = Pool::from_handle(pool)?.attribute(attribute)?;
    match attribute {
        1..=3 => value.cast().put(answer as u32),
        _ => value.cast().put(answer),
    }
}

pub fn set_access(pool: usize, map: In<u8>, count: usize) -> Outcome<()> {
    driver()?;
    let home = Pool::from_handle(pool)?.device();
    for index in 0..count {
        let (gpu, flags) = access_at(map, index)?;
        if flags != 0 {
            checkpoint::note_access(gpu, home);
        }
    }
    Ok(())
}

pub fn access(flags: Out<i32>, pool: usize, _location: In<[i32; 2]>) -> Outcome<()> {
    driver()?;
    Pool::from_handle(pool)?;
    flags.put(3)
}

pub fn default_of(pool: Out<usize>, ordinal: i32) -> Outcome<()> {
    pool.put(driver()?.gpu(device::index(ordinal)?).default_pool.handle())
}

pub fn current_of(pool: Out<usize>, ordinal: i32) -> Outcome<()> {
    pool.put(driver()?.current_pool(device::index(ordinal)?).handle())
}

fn set_current(index: usize, handle: usize) -> Outcome<()> {
    let pool = Pool::even_destroyed(handle)?;
    if pool.device() != Some(index) {
        return Err(Status::INVALID_VALUE);
    }
    if pool.is_managed() {
        // A managed pool never becomes the pool of `cuMemAllocAsync` (measured, H200).
        return Ok(());
    }
    *driver()?.current_pool(index) = pool;
    Ok(())
}

pub fn set_current_of(ordinal: i32, pool: usize) -> Outcome<()> {
    set_current(device::index(ordinal)?, pool)
}

/// Returns the GPU of a default pool. The simulated driver has default pools only for pinned memory
/// of a GPU.
fn place(at: In<[i32; 2]>, kind: i32) -> Outcome<usize> {
    match (location(at.get()?)?, kind) {
        (Some(index), PINNED) => Ok(index),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

pub fn default_at(pool: Out<usize>, at: In<[i32; 2]>, kind: i32) -> Outcome<()> {
    let driver = driver()?;
    match kind {
        MANAGED => pool.put(managed_default(at.get()?)?.handle()),
        kind => pool.put(driver.gpu(place(at, kind)?).default_pool.handle()),
    }
}

pub fn current_at(pool: Out<usize>, at: In<[i32; 2]>, kind: i32) -> Outcome<()> {
    let driver = driver()?;
    match kind {
        MANAGED => pool.put(managed_default(at.get()?)?.handle()),
        kind => pool.put(driver.current_pool(place(at, kind)?).handle()),
    }
}

pub fn set_current_at(at: In<[i32; 2]>, kind: i32, pool: usize) -> Outcome<()> {
    match kind {
        MANAGED => driver().map(drop),
        kind => set_current(place(at, kind)?, pool),
    }
}

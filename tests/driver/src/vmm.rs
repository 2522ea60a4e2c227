//! Virtual memory management: addresses, physical allocations and mappings as three things of their own.
//!
//! An exported allocation is a memfd that says what it is. Whoever holds it, as a descriptor under way or as an import,
//! has a lock on it by an open file description of his own, which ends with the last copy of it. The exporter keeps the
//! memory, and stays charged, until there is no such lock: it looks at its next call that needs or frees memory.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::driver;
use crate::machine::{BLOCK, MAX_DEVICES};
use crate::space::space;
use crate::{Outcome, Status};

/// `CUmemAllocationProp`, as bytes.
pub type Properties = [u8; 32];

struct Physical {
    bytes: u64,
    /// None: host memory.
    device: Option<usize>,
    properties: Properties,
    handles: u32,
    mappings: u32,
    shared: Shared,
}

/// How an allocation is known to other processes.
enum Shared {
    No,
    /// Ours: its file.
    Exported(File),
    /// Another process's, which is charged for it: our lock.
    Imported(#[expect(dead_code, reason = "held, not read")] File),
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
    /// Allocations that only other processes hold.
    lingering: Vec<u64>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

struct Guard(MutexGuard<'static, Option<State>>);

impl Guard {
    fn get(&mut self) -> &mut State {
        self.0.get_or_insert_default()
    }
}

fn state() -> Guard {
    Guard(STATE.lock().unwrap_or_else(PoisonError::into_inner))
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
/// `INVALID_VALUE` for a size that is no multiple of the granularity, `OUT_OF_MEMORY`.
pub fn reserve(bytes: u64, alignment: u64) -> Outcome<u64> {
    aligned(bytes)?;
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(Status::INVALID_VALUE);
    }
    let address = space().take(bytes, alignment)?;
    state().get().reserved.insert(address, bytes);
    Ok(address)
}

/// Gives reserved addresses back.
///
/// # Errors
/// `INVALID_VALUE` when they are not exactly one reservation, or something is mapped there.
pub fn unreserve(address: u64, bytes: u64) -> Outcome<()> {
    let mut guard = state();
    let state = guard.get();
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

/// Takes physical memory and returns its handle.
///
/// # Errors
/// `INVALID_VALUE` for a size that is no multiple of the granularity, `OUT_OF_MEMORY`.
pub fn create(device: Option<usize>, bytes: u64, properties: Properties) -> Outcome<u64> {
    aligned(bytes)?;
    sweep();
    if let Some(device) = device {
        driver()?.take(device, bytes)?;
    }
    Ok(state().get().add(Physical {
        bytes,
        device,
        properties,
        handles: 1,
        mappings: 0,
        shared: Shared::No,
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

    /// Gives the memory back when neither handles nor mappings are left, here or elsewhere.
    fn settle(&mut self, handle: u64) {
        let Some(physical) = self.physical.get(&handle) else {
            return;
        };
        if physical.handles > 0 || physical.mappings > 0 {
            return;
        }
        if let Shared::Exported(file) = &physical.shared
            && held_elsewhere(file)
        {
            if !self.lingering.contains(&handle) {
                self.lingering.push(handle);
            }
            return;
        }
        self.lingering.retain(|other| *other != handle);
        if let Some(physical) = self.physical.remove(&handle) {
            physical.give();
        }
    }
}

impl Physical {
    fn give(self) {
        if let (Some(device), Ok(driver)) = (self.device, driver())
            && !matches!(self.shared, Shared::Imported(_))
        {
            driver.give(device, self.bytes);
        }
    }
}

/// Gives back what other processes have let go of since.
pub fn sweep() {
    let mut guard = state();
    let state = guard.get();
    for handle in state.lingering.clone() {
        state.settle(handle);
    }
}

fn lock(file: &File, kind: i32, command: i32) -> Option<libc::flock> {
    // SAFETY: all-zero is a valid `flock`, and locks of open file descriptions ask for l_pid = 0.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as i16;
    request.l_whence = libc::SEEK_SET as i16;
    request.l_len = 1;
    // SAFETY: a live descriptor and a request that is ours to write.
    (unsafe { libc::fcntl(file.as_raw_fd(), command, &mut request) } == 0).then_some(request)
}

fn held_elsewhere(file: &File) -> bool {
    lock(file, libc::F_WRLCK, libc::F_OFD_GETLK)
        .is_some_and(|answer| i32::from(answer.l_type) != libc::F_UNLCK)
}

/// An open file description of its own, with a lock.
fn hold(descriptor: i32) -> Outcome<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{descriptor}"))
        .map_err(|_| Status::INVALID_VALUE)?;
    lock(&file, libc::F_RDLCK, libc::F_OFD_SETLK).ok_or(Status::INVALID_VALUE)?;
    Ok(file)
}

const EXPORT_MAGIC: u64 = 0x6770_756c_696d_0101;

/// Exports an allocation as a file descriptor.
///
/// # Errors
/// `INVALID_VALUE` for an unknown handle, an imported one, or one that was not created for it.
pub fn export(handle: u64) -> Outcome<i32> {
    let mut guard = state();
    let physical = guard.get().physical(handle)?;
    // requestedHandleTypes: a file descriptor.
    if physical.handles == 0 || physical.properties[4] & 1 == 0 {
        return Err(Status::INVALID_VALUE);
    }
    if let Shared::No = physical.shared {
        // SAFETY: a NUL-terminated name.
        let made = unsafe { libc::memfd_create(c"gpulimit-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if made < 0 {
            return Err(Status::OUT_OF_MEMORY);
        }
        // SAFETY: a fresh descriptor that nobody else has.
        let file = unsafe { File::from_raw_fd(made) };
        let mut text = [0; 56];
        text[..8].copy_from_slice(&EXPORT_MAGIC.to_le_bytes());
        let device = physical.device.map_or(u64::MAX, |device| device as u64);
        text[8..16].copy_from_slice(&device.to_le_bytes());
        text[16..24].copy_from_slice(&physical.bytes.to_le_bytes());
        text[24..].copy_from_slice(&physical.properties);
        file.write_all_at(&text, 0)
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        physical.shared = Shared::Exported(file);
    }
    match &physical.shared {
        Shared::Exported(file) => Ok(hold(file.as_raw_fd())?.into_raw_fd()),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Imports an allocation from a file descriptor, which stays the caller's: one more reference to the handle of an
/// allocation of our own, else a handle of another process's, which stays charged for it.
///
/// # Errors
/// `INVALID_VALUE` when it is no exported allocation.
pub fn import(descriptor: i32) -> Outcome<u64> {
    let held = hold(descriptor)?;
    let mut text = [0; 56];
    held.read_exact_at(&mut text, 0)
        .map_err(|_| Status::INVALID_VALUE)?;
    let word = |at: usize| {
        let bytes: [u8; 8] = text[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes)
    };
    let inode = held.metadata().map_err(|_| Status::INVALID_VALUE)?.ino();
    if word(0) != EXPORT_MAGIC {
        return Err(Status::INVALID_VALUE);
    }
    let mut guard = state();
    let state = guard.get();
    let own = state
        .physical
        .iter_mut()
        .find(|(_, physical)| match &physical.shared {
            Shared::Exported(file) => file.metadata().is_ok_and(|data| data.ino() == inode),
            _ => false,
        });
    if let Some((handle, physical)) = own {
        physical.handles += 1;
        return Ok(*handle);
    }
    let mut properties = [0; 32];
    properties.copy_from_slice(&text[24..]);
    Ok(state.add(Physical {
        bytes: word(16),
        device: usize::try_from(word(8))
            .ok()
            .filter(|device| *device < MAX_DEVICES),
        properties,
        handles: 1,
        mappings: 0,
        shared: Shared::Imported(held),
    }))
}

/// Releases one reference to a handle.
///
/// # Errors
/// `INVALID_VALUE` when there is none left.
pub fn release(handle: u64) -> Outcome<()> {
    sweep();
    let mut guard = state();
    let state = guard.get();
    let physical = state.physical(handle)?;
    physical.handles = physical
        .handles
        .checked_sub(1)
        .ok_or(Status::INVALID_VALUE)?;
    state.settle(handle);
    Ok(())
}

/// One more reference to the handle that is mapped at the address.
///
/// # Errors
/// `INVALID_VALUE` when nothing is mapped there.
pub fn retain(address: u64) -> Outcome<u64> {
    let mut guard = state();
    let state = guard.get();
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

/// Maps a handle's memory at reserved addresses.
///
/// # Errors
/// `INVALID_VALUE` unless the whole memory is mapped into one reservation, `ALREADY_MAPPED`.
pub fn map(address: u64, bytes: u64, offset: u64, handle: u64) -> Outcome<()> {
    aligned(bytes)?;
    let mut guard = state();
    let state = guard.get();
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

/// Whether memory can be mapped: there is a handle.
///
/// # Errors
/// `INVALID_VALUE` when there is none.
pub fn check(handle: u64) -> Outcome<()> {
    match state().get().physical(handle)?.handles {
        0 => Err(Status::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// Unmaps a range, which must consist of whole mappings.
///
/// # Errors
/// `INVALID_VALUE` when it does not.
pub fn unmap(address: u64, bytes: u64) -> Outcome<()> {
    let mut guard = state();
    let state = guard.get();
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
    /// The mappings of which a range consists.
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

/// Sets what may be done with a range of whole mappings.
///
/// # Errors
/// `INVALID_VALUE` when something in it is not mapped.
pub fn set_access(address: u64, bytes: u64, access: u64) -> Outcome<()> {
    let mut guard = state();
    let state = guard.get();
    for start in state.whole(address, bytes)? {
        if let Some(mapping) = state.mapped.get_mut(&start) {
            mapping.access = access;
        }
    }
    Ok(())
}

/// What may be done at an address.
///
/// # Errors
/// `INVALID_VALUE` when nothing is mapped there.
pub fn access(address: u64) -> Outcome<u64> {
    Ok(state().get().mapping(address)?.1.access)
}

/// The properties with which a handle was created.
///
/// # Errors
/// `INVALID_VALUE` for an unknown handle.
pub fn properties(handle: u64) -> Outcome<Properties> {
    Ok(state().get().physical(handle)?.properties)
}

/// The mapping in which an address lies: start, bytes and GPU.
pub fn find(address: u64) -> Option<(u64, u64, Option<usize>)> {
    let mut guard = state();
    let state = guard.get();
    let (start, mapping) = state.mapping(address).ok()?;
    let device = state.physical.get(&mapping.handle)?.device;
    Some((start, mapping.bytes, device))
}

/// Drops all physical memory of a GPU: its last context went.
pub fn clear_all(device: usize) {
    let mut guard = state();
    let state = guard.get();
    let gone: Vec<u64> = state
        .physical
        .iter()
        .filter(|(_, physical)| physical.device == Some(device))
        .map(|(handle, _)| *handle)
        .collect();
    state
        .mapped
        .retain(|_, mapping| !gone.contains(&mapping.handle));
    state.lingering.retain(|handle| !gone.contains(handle));
    for handle in gone {
        if let Some(physical) = state.physical.remove(&handle) {
            physical.give();
        }
    }
}

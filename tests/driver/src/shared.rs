//! Memory that several processes may hold: allocations that were exported.
//!
//! Its bytes lie in a slot of their own beside those of the processes ([`Object`]), and count for the first process in the
//! order of arrival that still holds it: the exporter, then who imported it first. With the last holder's release or death they
//! go back, also while there is a descriptor. Measured, H100, 580.159.04. Assumed: that who imports from that descriptor takes
//! them anew, the order of several importers, and that the dead leave it to them when what they held is freed.
//!
//! A descriptor is a memfd that says what the memory is, and which object holds it.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::driver::driver;
use crate::machine::{BLOCK, MAX_DEVICES, MAX_PROCESSES, Machine, Object};
use crate::process::{ObjectsLock, is_alive};
use crate::vmm::Properties;
use crate::{Outcome, Status, grant};

const MAGIC: u64 = 0x6770_756c_696d_0102;
/// Bytes of a description: magic, GPU, size, properties.
const TEXT: usize = 56;

/// Exported memory, as one process knows it.
pub struct Shared {
    file: File,
    /// None: host memory.
    pub device: Option<usize>,
    /// Its size.
    pub bytes: u64,
}

impl Shared {
    /// Makes memory that this process alone holds known to others.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there is no room for one more.
    pub fn export(device: Option<usize>, bytes: u64, properties: &Properties) -> Outcome<Shared> {
        // SAFETY: a NUL-terminated name.
        let made = unsafe { libc::memfd_create(c"gpulimit-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if made < 0 {
            return Err(Status::OUT_OF_MEMORY);
        }
        // SAFETY: a fresh descriptor that nobody else has.
        let file = unsafe { File::from_raw_fd(made) };
        let mut text = [0; TEXT];
        text[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let number = device.map_or(u64::MAX, |device| device as u64);
        text[8..16].copy_from_slice(&number.to_le_bytes());
        text[16..24].copy_from_slice(&bytes.to_le_bytes());
        text[24..].copy_from_slice(properties);
        file.write_all_at(&text, 0)
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        let shared = Shared {
            file,
            device,
            bytes,
        };
        if let Some(device) = device {
            let driver = driver()?;
            let lock = ObjectsLock::wait().ok_or(Status::UNKNOWN)?;
            let place = free_object(driver.machine).ok_or(Status::OUT_OF_MEMORY)?;
            // Never twice at a time, so that no peak shows it twice: others may come in between.
            driver.give(device, bytes);
            while !shared.take(driver.machine, place, device) {
                std::thread::yield_now();
            }
            shared.enter(driver.machine, place, driver.owner(), &lock)?;
        }
        Ok(shared)
    }

    /// What a descriptor, which stays the caller's, stands for, with its properties.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is no exported allocation.
    pub fn read(descriptor: i32) -> Outcome<(Shared, Properties)> {
        if descriptor < 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not kept beyond the call; a number that is no descriptor is an error of the system's.
        let file: File = unsafe { BorrowedFd::borrow_raw(descriptor) }
            .try_clone_to_owned()
            .map_err(|_| Status::INVALID_VALUE)?
            .into();
        let mut text = [0; TEXT];
        file.read_exact_at(&mut text, 0)
            .map_err(|_| Status::INVALID_VALUE)?;
        let word = |at: usize| {
            let bytes: [u8; 8] = text[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        if word(0) != MAGIC {
            return Err(Status::INVALID_VALUE);
        }
        let mut properties = [0; 32];
        properties.copy_from_slice(&text[24..]);
        let device = usize::try_from(word(8))
            .ok()
            .filter(|device| *device < MAX_DEVICES);
        let shared = Shared {
            file,
            device,
            bytes: word(16),
        };
        Ok((shared, properties))
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there is no room for one more.
    pub fn descriptor(&self) -> Outcome<i32> {
        let copy = self.file.try_clone().map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(copy.into_raw_fd())
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &Shared) -> bool {
        let inode = |shared: &Shared| shared.file.metadata().ok().map(|data| data.ino());
        inode(self) == inode(other)
    }

    /// This process holds it from now on.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when nobody held it and the GPU has not that much left, or too many hold it.
    pub fn hold(&self) -> Outcome<()> {
        let Some(device) = self.device else {
            return Ok(());
        };
        let driver = driver()?;
        let machine = driver.machine;
        let lock = ObjectsLock::wait().ok_or(Status::UNKNOWN)?;
        if let Some(object) = self.object(machine) {
            sweep_object(machine, object, &lock);
        }
        if let Some(object) = self.object(machine) {
            let holders = &machine.objects[object].holders;
            let free = holders.iter().find(|holder| holder.load(SeqCst) == 0);
            free.ok_or(Status::OUT_OF_MEMORY)?
                .store(driver.owner(), SeqCst);
            return Ok(());
        }
        let object = free_object(machine).ok_or(Status::OUT_OF_MEMORY)?;
        if !self.take(machine, object, device) {
            return Err(Status::OUT_OF_MEMORY);
        }
        self.enter(machine, object, driver.owner(), &lock)
    }

    /// This process does not hold it any more.
    pub fn let_go(&self) {
        let (Some(_), Ok(driver), Some(lock)) = (self.device, driver(), ObjectsLock::wait()) else {
            return;
        };
        let machine = driver.machine;
        if let Some(object) = self.object(machine) {
            remove(&machine.objects[object], |holder| holder == driver.owner());
            sweep_object(machine, object, &lock);
        }
    }

    fn take(&self, machine: &Machine, object: usize, device: usize) -> bool {
        let blocks = (self.bytes / BLOCK) as i64;
        grant::change(machine, MAX_PROCESSES + object, device, blocks)
    }

    /// Notes which object holds it, with its first holder.
    fn enter(
        &self,
        machine: &Machine,
        object: usize,
        owner: u64,
        _lock: &ObjectsLock,
    ) -> Outcome<()> {
        let Object {
            birth,
            device,
            holders,
        } = &machine.objects[object];
        device.store(self.device.unwrap_or(0) as u64, SeqCst);
        holders[0].store(owner, SeqCst);
        let born = machine.births.fetch_add(1, SeqCst) + 1;
        birth.store(born, SeqCst);
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&(object as u64).to_le_bytes());
        entry[8..].copy_from_slice(&born.to_le_bytes());
        let written = self.file.write_all_at(&entry, TEXT as u64);
        written.map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// The object that holds it; none while nobody does.
    fn object(&self, machine: &Machine) -> Option<usize> {
        let mut entry = [0; 16];
        self.file.read_exact_at(&mut entry, TEXT as u64).ok()?;
        let [object, born] = [0, 8].map(|at| {
            let bytes: [u8; 8] = entry[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        });
        let object = usize::try_from(object).ok()?;
        (machine.objects.get(object)?.birth.load(SeqCst) == born).then_some(object)
    }
}

fn free_object(machine: &Machine) -> Option<usize> {
    let is_free = |object: &Object| object.birth.load(SeqCst) == 0;
    machine.objects.iter().position(is_free)
}

/// Takes holders out and closes the gaps: the others keep their order.
fn remove(object: &Object, gone: impl Fn(u64) -> bool) {
    let stay: Vec<u64> = holders(object).filter(|holder| !gone(*holder)).collect();
    for (at, place) in object.holders.iter().enumerate() {
        place.store(stay.get(at).copied().unwrap_or(0), SeqCst);
    }
}

fn holders(object: &Object) -> impl Iterator<Item = u64> + '_ {
    let holder = |place: &std::sync::atomic::AtomicU64| place.load(SeqCst);
    object
        .holders
        .iter()
        .map(holder)
        .filter(|owner| *owner != 0)
}

/// Takes the dead out; with the last holder the memory goes back.
fn sweep_object(machine: &Machine, at: usize, _lock: &ObjectsLock) {
    let object = &machine.objects[at];
    remove(object, |holder| !is_alive(machine, holder));
    if object.birth.load(SeqCst) == 0 || holders(object).next().is_some() {
        return;
    }
    let device = object.device.load(Relaxed) as usize;
    let blocks = grant::held(machine, MAX_PROCESSES + at, device) as i64;
    grant::change(machine, MAX_PROCESSES + at, device, -blocks);
    object.birth.store(0, SeqCst);
}

/// Gives back what only the dead held, unless somebody is at it.
pub fn sweep(machine: &Machine) {
    let abandoned = |object: &Object| {
        object.birth.load(SeqCst) != 0 && !holders(object).any(|owner| is_alive(machine, owner))
    };
    if !machine.objects.iter().any(abandoned) {
        return;
    }
    if let Some(lock) = ObjectsLock::attempt() {
        (0..machine.objects.len()).for_each(|at| sweep_object(machine, at, &lock));
    }
}

/// Calls `seen` with owner, GPU and bytes of all shared memory.
pub fn each_borne(machine: &Machine, mut seen: impl FnMut(u64, usize, u64)) {
    for (at, object) in machine.objects.iter().enumerate() {
        let bearer = holders(object).find(|owner| is_alive(machine, *owner));
        if let (true, Some(owner)) = (object.birth.load(SeqCst) != 0, bearer) {
            let device = object.device.load(Relaxed) as usize;
            let bytes = grant::held(machine, MAX_PROCESSES + at, device) * BLOCK;
            seen(owner, device, bytes);
        }
    }
}

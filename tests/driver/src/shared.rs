//! Exported memory of the simulated driver, which several processes may hold.
//!
//! The bytes of an exported [`Object`] count in the object's own slot as long as any process has a
//! handle, a mapping or a descriptor. Linear memory ([`crate::ipc`]) has no descriptors.
//!
//! Measured (H100, 580.159.04): NVML counts the bytes for the exporter while the exporter holds
//! them. After that, NVML counts them for the only importer if no descriptor is open, and otherwise
//! for no process. Assumed: several importers also mean no process.
//!
//! A descriptor belongs to a file that describes the object. The lock on this file lasts until the
//! last copy of the descriptor is closed.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::driver::driver;
use crate::machine::{BLOCK, MAX_DEVICES, MAX_PROCESSES, Machine, Object, object_path};
use crate::process::{ObjectsLock, hold_descriptor, is_alive, is_held};
use crate::vmm::Properties;
use crate::{Outcome, Status, grant};

const MAGIC: u64 = 0x6770_756c_696d_0103;
/// The bytes of the file that describes an exported object: magic, GPU, size, object, birth,
/// properties.
const TEXT: usize = 72;

/// Exported memory, as one process holds it.
pub struct Shared {
    /// The GPU of the exported memory; `None` for host memory.
    pub device: Option<usize>,
    /// The size in bytes.
    pub bytes: u64,
    object: usize,
    birth: u64,
    exporter: bool,
}

impl Shared {
    /// Exports memory that only this process holds. Returns the memory and a descriptor.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` without a free object.
    pub fn export(
        device: Option<usize>,
        bytes: u64,
        properties: &Properties,
    ) -> Outcome<(Shared, i32)> {
        let describe = |shared: &Shared| {
            let mut text = [0; TEXT];
            let number = device.map_or(u64::MAX, |device| device as u64);
            let words = [MAGIC, number, bytes, shared.object as u64, shared.birth];
            for (at, word) in words.into_iter().enumerate() {
                text[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
            }
            text[40..].copy_from_slice(properties);
            let write = |path: PathBuf| std::fs::write(path, text);
            write(object_path(shared.birth)).map_err(|_| Status::OUT_OF_MEMORY)?;
            shared.descriptor()
        };
        Shared::share(device, bytes, describe)
    }

    /// Moves memory that only this process holds to an exported object. `describe` runs before the
    /// move.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` without a free object; those of `describe`.
    pub fn share<T>(
        device: Option<usize>,
        bytes: u64,
        describe: impl FnOnce(&Shared) -> Outcome<T>,
    ) -> Outcome<(Shared, T)> {
        let driver = driver()?;
        let machine = driver.machine;
        let _lock = ObjectsLock::wait().ok_or(Status::UNKNOWN)?;
        let free = |object: &Object| object.birth.load(SeqCst) == 0;
        let place = machine.objects.iter().position(free);
        let place = place.ok_or(Status::OUT_OF_MEMORY)?;
        let shared = Shared {
            device,
            bytes,
            object: place,
            birth: machine.births.fetch_add(1, SeqCst) + 1,
            exporter: true,
        };
        let described = describe(&shared)?;
        if let Some(device) = device {
            // The process gives the bytes back before the object takes them. So no peak counts the
            // bytes twice.
            driver.give(device, bytes);
            let blocks = (bytes / BLOCK) as i64;
            // Another process may take the room in between. Wait until there is room again.
            while !grant::change(machine, MAX_PROCESSES + place, device, blocks) {
                std::thread::yield_now();
            }
        }
        let object = &machine.objects[place];
        let number = device.map_or(u64::MAX, |device| device as u64);
        object.device.store(number, SeqCst);
        object.exporter.store(driver.owner(), SeqCst);
        object.birth.store(shared.birth, SeqCst);
        Ok((shared, described))
    }

    /// Imports the exported memory of a descriptor, which the caller keeps.
    ///
    /// # Errors
    /// - `INVALID_VALUE`: the descriptor is not exported memory.
    /// - `OUT_OF_MEMORY`: the memory has too many imports.
    pub fn import(descriptor: i32) -> Outcome<(Shared, Properties)> {
        if descriptor < 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the borrow ends with this statement. A number that is not an open descriptor only
        // makes the system call fail.
        let file: File = unsafe { BorrowedFd::borrow_raw(descriptor) }
            .try_clone_to_owned()
            .map_err(|_| Status::INVALID_VALUE)?
            .into();
        let mut text = [0; TEXT];
        file.read_exact_at(&mut text, 0)
            .map_err(|_| Status::INVALID_VALUE)?;
        let [magic, number, bytes, object, birth] = [0, 8, 16, 24, 32].map(|at| {
            let bytes: [u8; 8] = text[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        });
        if magic != MAGIC {
            return Err(Status::INVALID_VALUE);
        }
        let mut properties = [0; 32];
        properties.copy_from_slice(&text[40..]);
        let shared = Shared {
            device: usize::try_from(number)
                .ok()
                .filter(|device| *device < MAX_DEVICES),
            bytes,
            object: object as usize,
            birth,
            exporter: false,
        };
        shared.enter(|_| true)?;
        Ok((shared, properties))
    }

    /// Imports memory that another process still holds. `object` and `birth` are its
    /// [`Shared::name`] in that process.
    ///
    /// # Errors
    /// - `INVALID_CONTEXT`: this process is the exporter.
    /// - `INVALID_VALUE`: the exporter no longer holds the memory.
    /// - `OUT_OF_MEMORY`: the memory has too many imports.
    pub fn open(device: usize, bytes: u64, [object, birth]: [u64; 2]) -> Outcome<Shared> {
        let shared = Shared {
            device: Some(device),
            bytes,
            object: object as usize,
            birth,
            exporter: false,
        };
        let driver = driver()?;
        let exporter = shared
            .find(driver.machine)
            .map(|object| object.exporter.load(SeqCst));
        if exporter == Some(driver.owner()) {
            return Err(Status::INVALID_CONTEXT);
        }
        shared.enter(|object| object.exporter.load(SeqCst) != 0)?;
        Ok(shared)
    }

    /// Returns the two numbers that identify the exported object.
    pub fn name(&self) -> [u64; 2] {
        [self.object as u64, self.birth]
    }

    fn enter(&self, may: impl FnOnce(&Object) -> bool) -> Outcome<()> {
        let driver = driver()?;
        let _lock = ObjectsLock::wait().ok_or(Status::UNKNOWN)?;
        let object = self.find(driver.machine).filter(|object| may(object));
        let object = object.ok_or(Status::INVALID_VALUE)?;
        let free = object.imports.iter().find(|place| place.load(SeqCst) == 0);
        free.ok_or(Status::OUT_OF_MEMORY)?
            .store(driver.owner(), SeqCst);
        Ok(())
    }

    /// Opens another descriptor of the exported memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for imported memory, `OUT_OF_MEMORY` when the descriptor cannot be opened.
    pub fn descriptor(&self) -> Outcome<i32> {
        if !self.exporter {
            return Err(Status::INVALID_VALUE);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(object_path(self.birth))
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        hold_descriptor(&file).map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(file.into_raw_fd())
    }

    /// Ends this process's export or import, once the process has no handle and no mapping left.
    pub fn let_go(&self) {
        let (Ok(driver), Some(lock)) = (driver(), ObjectsLock::wait()) else {
            return;
        };
        let Some(object) = self.find(driver.machine) else {
            return;
        };
        if self.exporter {
            object.exporter.store(0, SeqCst);
        } else {
            let own = |place: &&AtomicU64| place.load(SeqCst) == driver.owner();
            if let Some(place) = object.imports.iter().find(own) {
                place.store(0, SeqCst);
            }
        }
        sweep_object(driver.machine, self.object, &lock);
    }

    fn find<'a>(&self, machine: &'a Machine) -> Option<&'a Object> {
        let object = machine.objects.get(self.object)?;
        (object.birth.load(SeqCst) == self.birth).then_some(object)
    }
}

/// Returns the exporter and the importers of an object. Leaves out owners whose slots have been
/// freed.
fn holders(machine: &Machine, object: &Object) -> (Option<u64>, Vec<u64>) {
    let alive = |place: &AtomicU64| {
        let owner = place.load(SeqCst);
        (owner != 0 && is_alive(machine, owner)).then_some(owner)
    };
    (
        alive(&object.exporter),
        object.imports.iter().filter_map(alive).collect(),
    )
}

/// Returns whether any process has a descriptor of the object open.
fn is_under_way(object: &Object) -> bool {
    File::open(object_path(object.birth.load(SeqCst))).is_ok_and(|file| is_held(&file))
}

fn is_abandoned(machine: &Machine, object: &Object) -> bool {
    let (exporter, imports) = holders(machine, object);
    object.birth.load(SeqCst) != 0
        && exporter.is_none()
        && imports.is_empty()
        && !is_under_way(object)
}

fn sweep_object(machine: &Machine, at: usize, _lock: &ObjectsLock) {
    let object = &machine.objects[at];
    if !is_abandoned(machine, object) {
        return;
    }
    let _ = std::fs::remove_file(object_path(object.birth.load(SeqCst)));
    if let Ok(device @ 0..MAX_DEVICES) = usize::try_from(object.device.load(Relaxed)) {
        let blocks = grant::held(machine, MAX_PROCESSES + at, device) as i64;
        grant::change(machine, MAX_PROCESSES + at, device, -blocks);
        machine.slots[MAX_PROCESSES + at].away[device].store(0, SeqCst);
    }
    for place in object.imports.iter().chain([&object.exporter]) {
        place.store(0, SeqCst);
    }
    object.birth.store(0, SeqCst);
}

/// Frees the exported objects that no process holds. Does nothing while another process has the
/// lock on exported objects.
pub fn sweep(machine: &Machine) {
    let abandoned = |object: &Object| is_abandoned(machine, object);
    if machine.objects.iter().any(abandoned)
        && let Some(lock) = ObjectsLock::attempt()
    {
        (0..machine.objects.len()).for_each(|at| sweep_object(machine, at, &lock));
    }
}

/// Calls `seen` with the process, the GPU and the bytes of exported memory that NVML counts for a
/// process.
pub fn each_shown(machine: &Machine, mut seen: impl FnMut(u64, usize, u64)) {
    for (at, object) in machine.objects.iter().enumerate() {
        if object.birth.load(SeqCst) == 0 {
            continue;
        }
        let shown = match holders(machine, object) {
            (Some(exporter), _) => Some(exporter),
            (None, imports) => match imports.as_slice() {
                [only] if !is_under_way(object) => Some(*only),
                _ => None,
            },
        };
        let device = usize::try_from(object.device.load(Relaxed));
        if let (Some(owner), Ok(device @ 0..MAX_DEVICES)) = (shown, device) {
            let bytes = grant::held(machine, MAX_PROCESSES + at, device) * BLOCK;
            seen(owner, device, bytes);
        }
    }
}

/// Returns how many exported bytes of a GPU's memory are no longer held by their exporter.
pub fn unowned(machine: &Machine, device: usize) -> u64 {
    let on_device = |object: &Object| object.device.load(Relaxed) == device as u64;
    let left = |(_, object): &(usize, &Object)| {
        object.birth.load(SeqCst) != 0 && on_device(object) && holders(machine, object).0.is_none()
    };
    let objects = machine.objects.iter().enumerate().filter(left);
    objects
        .map(|(at, _)| grant::held(machine, MAX_PROCESSES + at, device) * BLOCK)
        .sum()
}

/// Returns whether a process has imported or opened memory of another process.
pub(crate) fn has_imports(machine: &Machine, owner: u64) -> bool {
    let imported = |object: &Object| {
        object.birth.load(SeqCst) != 0
            && object.exporter.load(SeqCst) != owner
            && (object.imports.iter()).any(|place| place.load(SeqCst) == owner)
    };
    machine.objects.iter().any(imported)
}

/// Calls `each` with the slot and the GPU of each exported object of a process.
fn each_exported(machine: &Machine, owner: u64, mut each: impl FnMut(&Object, usize, usize)) {
    for (at, object) in machine.objects.iter().enumerate() {
        if object.birth.load(SeqCst) != 0
            && object.exporter.load(SeqCst) == owner
            && let Ok(device @ 0..MAX_DEVICES) = usize::try_from(object.device.load(SeqCst))
        {
            each(object, MAX_PROCESSES + at, device);
        }
    }
}

/// Moves the exported memory of a process away from the GPUs, except memory that another process
/// has opened. May be repeated.
pub(crate) fn move_away(machine: &Machine, owner: u64) {
    let _lock = ObjectsLock::wait();
    each_exported(machine, owner, |object, slot, device| {
        let blocks = grant::held(machine, slot, device);
        if blocks > 0 && holders(machine, object).1.is_empty() {
            machine.slots[slot].away[device].store(blocks, SeqCst);
            grant::change(machine, slot, device, -(blocks as i64));
        }
    });
}

/// Moves the exported memory of a process back to the GPUs. Returns false if a GPU has too little
/// room. May be repeated.
pub(crate) fn move_back(machine: &Machine, owner: u64) -> bool {
    let _lock = ObjectsLock::wait();
    let mut all = true;
    each_exported(machine, owner, |_, slot, device| {
        let away = machine.slots[slot].away[device].load(SeqCst);
        let more = away.saturating_sub(grant::held(machine, slot, device)) as i64;
        all &= more == 0 || grant::change(machine, slot, device, more);
        if all {
            machine.slots[slot].away[device].store(0, SeqCst);
        }
    });
    all
}

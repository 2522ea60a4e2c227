//! The machine: what all processes together hold on every GPU, in one file of shared memory.
//!
//! The file holds atomics only, no locks: a process may be killed or stopped at any instruction
//! without blocking the others. [`crate::grant`] is the protocol on the words; [`crate::process`]
//! decides which process owns a slot.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::knobs::{Knobs, Settings};

/// Physical memory is handed out in blocks of this many bytes.
pub const BLOCK: u64 = 2 << 20;
/// The most GPUs of one machine.
pub const MAX_DEVICES: usize = 16;
/// The most processes that can hold memory at a time.
pub const MAX_PROCESSES: usize = 4000;
/// The most exported allocations at a time.
pub const MAX_OBJECTS: usize = 90;
/// The bytes that a GPU keeps back: part of NVML's total and used figures, not of CUDA's total.
pub const RESERVED: u64 = 480 << 20;

const MAGIC: u64 = 0x6770_756c_696d_0009;

/// The shared state. A file of zeros is a valid, empty machine, which `create` then configures.
#[repr(C)]
pub struct Machine {
    magic: AtomicU64,
    /// Settings that may change while programs run.
    pub knobs: Knobs,
    /// One more than the highest slot that was ever owned.
    pub high_water: AtomicU32,
    /// When the slots were last searched for dead owners, in ms of the monotonic clock.
    pub last_scan: AtomicU64,
    /// Per GPU: the used blocks.
    pub devices: [DeviceWords; MAX_DEVICES],
    /// The number of objects ever made.
    pub births: AtomicU64,
    /// The holders of exported memory, see [`crate::shared`].
    pub objects: [Object; MAX_OBJECTS],
    /// One slot for each process, then one for each exported object.
    pub slots: [Slot; MAX_PROCESSES + MAX_OBJECTS],
}

/// Exported memory.
#[repr(C, align(64))]
pub struct Object {
    /// A number that no other object ever has; 0 = free.
    pub birth: AtomicU64,
    /// The GPU; a number past the last GPU for host memory.
    pub device: AtomicU64,
    /// The owner ([`Slot::owner`]) that exported it; 0 after that process has let go of it.
    pub exporter: AtomicU64,
    /// The owners that have imported it, once per import.
    pub imports: [AtomicU64; 29],
}

/// One GPU's words.
#[repr(C, align(64))]
pub struct DeviceWords {
    /// Blocks used and the last operation, see [`crate::grant`].
    pub word: AtomicU64,
    /// The most blocks ever used at a time.
    pub peak: AtomicU64,
}

/// The memory that one process holds, and the state of the process.
#[repr(C, align(64))]
pub struct Slot {
    /// 0 = free. Otherwise the owner: its pid (in its own namespace) in the high half, a unique
    /// birth number in the low half.
    pub owner: AtomicU64,
    /// Inode of the owner's PID namespace.
    pub namespace: AtomicU64,
    /// When the owner began to exit, in ms of the monotonic clock; 0 = the owner did not announce
    /// an exit.
    pub exiting: AtomicU64,
    /// When the owner was found dead, in ms; 0 = not found dead.
    pub died: AtomicU64,
    /// Whether the owner is locked or checkpointed, see [`crate::checkpoint`].
    pub state: AtomicU64,
    /// Per GPU: the blocks that a checkpoint moved away.
    pub away: [AtomicU64; MAX_DEVICES],
    /// Per GPU: the memory that the process holds.
    pub held: [Held; MAX_DEVICES],
}

/// The memory that one process holds on one GPU, see [`crate::grant`].
#[repr(C)]
pub struct Held {
    /// Blocks held and the last operation on them.
    pub word: AtomicU64,
    /// The operation that is about to be made.
    pub intent: AtomicU64,
}

/// Returns the time of the machine's monotonic clock.
pub fn monotonic() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a local variable that clock_gettime may write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns milliseconds of the machine's monotonic clock; never 0.
pub fn now_ms() -> u64 {
    (monotonic().as_millis() as u64).max(1)
}

/// Returns the path of the machine's state: `GPULIMIT_SIM_STATE`, or a file per user in shared
/// memory.
pub fn state_path() -> PathBuf {
    match std::env::var_os("GPULIMIT_SIM_STATE") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        // SAFETY: getuid cannot fail.
        _ => PathBuf::from(format!("/dev/shm/gpulimit-sim-{}", unsafe {
            libc::getuid()
        })),
    }
}

/// Returns the path of the file that represents exported memory.
pub fn object_path(birth: u64) -> PathBuf {
    let mut path = state_path().into_os_string();
    path.push(format!(".shared-{birth}"));
    PathBuf::from(path)
}

impl Machine {
    /// Returns the machine of this process, made at first use.
    ///
    /// # Errors
    /// When the state file can neither be opened nor created, or belongs to another version.
    pub fn get() -> io::Result<&'static Machine> {
        static MACHINE: OnceLock<Result<&'static Machine, String>> = OnceLock::new();
        MACHINE
            .get_or_init(|| {
                Machine::open().map_err(|error| format!("{}: {error}", state_path().display()))
            })
            .as_ref()
            .map(|machine| *machine)
            .map_err(|error| io::Error::other(error.clone()))
    }

    /// Opens the state file, for a file description of its own.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn file() -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(state_path())
    }

    fn open() -> io::Result<&'static Machine> {
        for _ in 0..8 {
            match Machine::file() {
                Ok(file) => return Machine::map(&file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Machine::create()?,
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the state file keeps vanishing"))
    }

    /// Writes a configured machine to another name and links it to the path, so that other
    /// processes only ever see a complete machine.
    fn create() -> io::Result<()> {
        let path = state_path();
        let mut fresh = path.clone().into_os_string();
        fresh.push(format!(".{}.{}", std::process::id(), now_ms()));
        let fresh = PathBuf::from(fresh);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&fresh)?;
        // All users of the machine share its GPUs, whatever the creator's umask is.
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        file.set_len(size_of::<Machine>() as u64)?;
        let machine = Machine::map_raw(&file)?;
        machine.knobs.configure(&Settings::from_environment());
        for device in &machine.devices {
            device.word.store(crate::grant::EMPTY, Ordering::Relaxed);
        }
        machine.magic.store(MAGIC, Ordering::Release);
        let made = std::fs::hard_link(&fresh, &path);
        let _ = std::fs::remove_file(&fresh);
        // SAFETY: `machine` was mapped above with this size, and no reference to it is left.
        unsafe {
            libc::munmap(
                std::ptr::from_ref(machine).cast_mut().cast(),
                size_of::<Machine>(),
            )
        };
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn map(file: &File) -> io::Result<&'static Machine> {
        let foreign = "not a simulated machine of this version; remove it";
        if file.metadata()?.len() != size_of::<Machine>() as u64 {
            return Err(io::Error::other(foreign));
        }
        let machine = Machine::map_raw(file)?;
        if machine.magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other(foreign));
        }
        Ok(machine)
    }

    fn map_raw(file: &File) -> io::Result<&'static Machine> {
        // SAFETY: a new shared mapping of a file of exactly this size, which is not unmapped once
        // `get` has returned it. Every field is an atomic, for which any bit pattern is valid.
        unsafe {
            let address = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Machine>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if address == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok(&*address.cast::<Machine>())
        }
    }
}

/// Removes the state file and the files of exported memory. Processes that have the state mapped
/// keep their machine.
pub fn remove_state() {
    if let Ok(machine) = Machine::get() {
        for object in &machine.objects {
            let _ = std::fs::remove_file(object_path(object.birth.load(Ordering::SeqCst)));
        }
    }
    let _ = std::fs::remove_file(state_path());
}

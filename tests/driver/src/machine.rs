//! The simulated machine: a shared file that records what all processes hold on every GPU.
//!
//! The file holds atomics and no locks. So a process that is killed or stopped never blocks others.
//! [`crate::grant`] changes the atomics. [`crate::process`] assigns the slots.
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

/// Physical memory of a GPU is handed out in blocks of this many bytes.
pub const BLOCK: u64 = 2 << 20;
/// The largest number of GPUs in one simulated machine.
pub const MAX_DEVICES: usize = 16;
/// The largest number of processes that can hold GPU memory at once.
pub const MAX_PROCESSES: usize = 4000;
/// The largest number of exported allocations at once.
pub const MAX_OBJECTS: usize = 90;
/// The bytes of each GPU that the driver reserves. NVML's total and used bytes include them; CUDA's
/// total bytes do not.
pub const RESERVED: u64 = 480 << 20;

const MAGIC: u64 = 0x6770_756c_696d_000e;

/// The contents of the shared file. A file of zeros is a valid machine without processes; `create`
/// then sets its knobs.
#[repr(C)]
pub struct Machine {
    magic: AtomicU64,
    /// The knobs, which may change while programs run.
    pub knobs: Knobs,
    /// One more than the number of the highest slot that ever had an owner.
    pub high_water: AtomicU32,
    /// The time at which the slots were last searched for dead owners, in ms of the monotonic
    /// clock.
    pub last_scan: AtomicU64,
    /// The used blocks of each GPU.
    pub devices: [DeviceWords; MAX_DEVICES],
    /// The number of exported objects ever made.
    pub births: AtomicU64,
    /// Exported memory, with the processes that hold it (see [`crate::shared`]).
    pub objects: [Object; MAX_OBJECTS],
    /// One slot for each process, followed by one for each exported object.
    pub slots: [Slot; MAX_PROCESSES + MAX_OBJECTS],
}

/// Exported memory.
#[repr(C, align(64))]
pub struct Object {
    /// The unique number of the exported object; 0 = this element is free.
    pub birth: AtomicU64,
    /// The GPU of the exported memory. For host memory this is a number past the last GPU.
    pub device: AtomicU64,
    /// The process ([`Slot::owner`]) that exported the memory; 0 once that process no longer holds
    /// the memory.
    pub exporter: AtomicU64,
    /// The processes ([`Slot::owner`]) that have imported the memory, once for each import.
    pub imports: [AtomicU64; 29],
}

/// One GPU's words.
#[repr(C, align(64))]
pub struct DeviceWords {
    /// The GPU's used blocks and the last operation on them, see [`crate::grant`].
    pub word: AtomicU64,
    /// The largest number of the GPU's blocks that were ever in use at once.
    pub peak: AtomicU64,
}

/// A slot: the memory that one process holds, and the state of that process.
#[repr(C, align(64))]
pub struct Slot {
    /// The slot's owner: its pid in its PID namespace (high half) and a unique number (low half); 0
    /// = free.
    pub owner: AtomicU64,
    /// Inode of the PID namespace of the slot's owner.
    pub namespace: AtomicU64,
    /// The time at which the owner began to exit, in ms of the monotonic clock; 0 = the owner
    /// announced no exit.
    pub exiting: AtomicU64,
    /// The time at which the owner was found dead, in ms of the monotonic clock; 0 = not found
    /// dead.
    pub died: AtomicU64,
    /// Whether the slot's owner is locked or checkpointed, see [`crate::checkpoint`].
    pub state: AtomicU64,
    /// The number of the owner's driver calls under way, while [`Knobs::active`] is not 0.
    pub calls: AtomicU64,
    /// The number of the owner's allocations and pools of managed memory.
    pub managed: AtomicU64,
    /// Whether the owner has given a GPU access to memory of another one: 1, or 0.
    pub peers: AtomicU32,
    /// The start time of the owner's process in clock ticks, which `exec` does not change; the low
    /// half.
    pub start: AtomicU32,
    /// The number of the owner's contexts on each GPU. NVML lists the owner where it has one.
    pub contexts: [AtomicU32; MAX_DEVICES],
    /// The blocks that a checkpoint moved away from each GPU. In the slot of an exported object,
    /// those of its exporter's checkpoint.
    pub away: [AtomicU64; MAX_DEVICES],
    /// The memory that the slot's owner holds on each GPU.
    pub held: [Held; MAX_DEVICES],
}

/// The memory that one process holds on one GPU, see [`crate::grant`].
#[repr(C)]
pub struct Held {
    /// The blocks that the process holds on the GPU, and the last operation on them.
    pub word: AtomicU64,
    /// The operation that the process is about to make.
    pub intent: AtomicU64,
}

/// Returns the time of the monotonic clock, which is the same for all processes.
pub fn monotonic() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a local variable that clock_gettime may write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time of the monotonic clock in milliseconds; never 0.
pub fn now_ms() -> u64 {
    (monotonic().as_millis() as u64).max(1)
}

/// Returns the path of the machine's shared file: `GPULIMIT_SIM_STATE`, or a file in `/dev/shm`
/// named after the user's id.
pub fn state_path() -> PathBuf {
    match std::env::var_os("GPULIMIT_SIM_STATE") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        // SAFETY: getuid cannot fail.
        _ => PathBuf::from(format!("/dev/shm/gpulimit-sim-{}", unsafe {
            libc::getuid()
        })),
    }
}

/// Returns the path of the file that represents an exported object.
pub fn object_path(birth: u64) -> PathBuf {
    let mut path = state_path().into_os_string();
    path.push(format!(".shared-{birth}"));
    PathBuf::from(path)
}

impl Machine {
    /// Returns the simulated machine of this process, which the first call opens or creates.
    ///
    /// # Errors
    /// An error of the shared file, or another version in it.
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

    /// Opens the machine's shared file anew, because a file lock belongs to one opening of the
    /// file.
    ///
    /// # Errors
    /// When the file cannot be opened.
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
        Err(io::Error::other("a process keeps removing the state file"))
    }

    /// Creates a machine. The file gets its final name only when it is complete, so other processes
    /// never see an incomplete machine.
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
        // All users of the machine share its GPUs. So every user may write to the file, whatever
        // the umask.
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
        let foreign = "not a simulated machine of this version; remove this file";
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
        // SAFETY: a new mapping of exactly this size, kept once `get` has returned it. Atomics
        // allow any bit pattern.
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

/// Removes the machine's shared file and the files of exported memory. A process that has already
/// opened the machine keeps it.
pub fn remove_state() {
    if let Ok(machine) = Machine::get() {
        for object in &machine.objects {
            let _ = std::fs::remove_file(object_path(object.birth.load(Ordering::SeqCst)));
        }
    }
    let _ = std::fs::remove_file(state_path());
}

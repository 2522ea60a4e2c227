//! The functions of the CUDA driver that suspending and resuming need, behind safe functions.
#![allow(unsafe_code)]

use crate::machine::nvml;
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_suspend::State;
use libloading::os::unix::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::time::Duration;

/// An error of a driver function (`CUresult`).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Status(pub i32);

impl Status {
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const INVALID_DEVICE: Self = Self(101);
    pub const OPERATING_SYSTEM: Self = Self(304);
    pub const NOT_READY: Self = Self(600);
    pub const UNKNOWN: Self = Self(999);

    /// Returns the driver's name of the status, and what the status means here.
    const fn meaning(self) -> Option<(&'static str, &'static str)> {
        Some(match self.0 {
            1 => (
                "CUDA_ERROR_INVALID_VALUE",
                "the process has memory of another process, or peer access between GPUs",
            ),
            2 => ("CUDA_ERROR_OUT_OF_MEMORY", "the GPU does not have the room"),
            3 => (
                "CUDA_ERROR_NOT_INITIALIZED",
                "the driver is not initialised, or the process does not use CUDA",
            ),
            100 => ("CUDA_ERROR_NO_DEVICE", "there is no GPU"),
            101 => (
                "CUDA_ERROR_INVALID_DEVICE",
                "CUDA does not show this GPU to gpulimit",
            ),
            304 => (
                "CUDA_ERROR_OPERATING_SYSTEM",
                "the process has ended, belongs to another user, or an earlier restore has failed",
            ),
            401 => (
                "CUDA_ERROR_ILLEGAL_STATE",
                "the process is not in the state for this step",
            ),
            600 => ("CUDA_ERROR_NOT_READY", "the time is over"),
            801 => (
                "CUDA_ERROR_NOT_SUPPORTED",
                "the driver cannot do this on this machine, or with memory of the process",
            ),
            803 => (
                "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                "libcuda.so.1 does not match the kernel module",
            ),
            999 => ("CUDA_ERROR_UNKNOWN", "the driver does not say why"),
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    /// Writes the number, and the name and meaning if they are known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some((name, meaning)) => write!(f, "{} ({name}): {meaning}", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A CUDA ordinal.
pub(super) type Ordinal = c_int;
/// An address in device memory.
pub(super) type Address = u64;

/// `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Default)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved: c_uint,
    more: [u64; 7],
}

// All argument structures of these functions have this size, in CUDA 12.8 to 13.5
// (tests/headers.rs).
const _: () = assert!(size_of::<LockArgs>() == 64);

/// Returns the failure of a driver that lacks the function of this name.
fn missing(name: &str) -> Failure {
    Failure::new(format_args!(
        "this CUDA driver cannot suspend processes, because it has no function {name}: install \
         driver 570 or later"
    ))
}

/// Declares the structure of the driver's functions, and how to look them up by their names.
macro_rules! functions {
    ($($field:ident: $name:ident($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, Failure> {
                $(
                    let name = stringify!($name);
                    // SAFETY: cuda.h declares the function with this type.
                    let found = unsafe { library.get(name.as_bytes()) };
                    let $field = *found.map_err(|_| missing(name))?;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

functions! {
    init: cuInit(c_uint);
    state: cuCheckpointProcessGetState(c_int, *mut c_int);
    lock: cuCheckpointProcessLock(c_int, *mut LockArgs);
    checkpoint: cuCheckpointProcessCheckpoint(c_int, *mut c_void);
    restore: cuCheckpointProcessRestore(c_int, *mut c_void);
    unlock: cuCheckpointProcessUnlock(c_int, *mut c_void);
    count: cuDeviceGetCount(*mut c_int);
    device: cuDeviceGet(*mut c_int, c_int);
    uuid: cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    retain: cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    release: cuDevicePrimaryCtxRelease_v2(c_int);
    set_current: cuCtxSetCurrent(*mut c_void);
    allocate: cuMemAlloc_v2(*mut u64, usize);
    free: cuMemFree_v2(u64);
}

/// The CUDA driver and NVML, ready to suspend and resume processes.
///
/// All calls block until the driver has done the work, and cannot be cancelled.
pub struct Checkpoints {
    cuda: Functions,
    /// NVML, which knows the machine's GPUs.
    pub gpus: nvml::Driver,
}

fn checked(status: c_int) -> Result<(), Status> {
    match status {
        0 => Ok(()),
        status => Err(Status(status)),
    }
}

impl Checkpoints {
    /// Loads and initialises the CUDA driver and NVML. Takes seconds on some machines. Removes
    /// `CUDA_VISIBLE_DEVICES` from the environment of this process, because a suspended process may
    /// use GPUs that the variable hides. Call before this process starts threads.
    ///
    /// # Errors
    /// Names the library or the function that is missing.
    pub fn load() -> Result<Self, Failure> {
        // SAFETY: loading runs the driver's constructors, as in every CUDA program.
        let library = unsafe { Library::new("libcuda.so.1") };
        let no_driver = |error| Failure::new(format_args!("cannot load the CUDA driver: {error}"));
        let library = library.map_err(no_driver)?;
        let functions = Functions::find(&library);
        // Do not unload the driver, because it may crash then.
        std::mem::forget(library);
        let cuda = functions?;
        // SAFETY: the caller promises that no other thread reads the environment.
        unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
        // SAFETY: cuInit has no requirements. The library stays loaded.
        checked(unsafe { (cuda.init)(0) }).map_err(|status| {
            Failure::new(format_args!(
                "cuInit fails with {status}: run `gpulimit doctor`"
            ))
        })?;
        let gpus = nvml::Driver::load().map_err(|error| {
            Failure::new(format_args!(
                "NVML does not answer ({error}): install libnvidia-ml.so.1, a part of the NVIDIA \
                 driver"
            ))
        })?;
        Ok(Self { cuda, gpus })
    }

    /// Returns the state of a process of this pid namespace (`CUprocessState`). Changes nothing.
    /// Waits while the driver moves the memory of the process, and while the process is stopped.
    ///
    /// # Errors
    /// [`Status::OPERATING_SYSTEM`] for a pid without a process and for a process of another user,
    /// [`Status::NOT_INITIALIZED`] for a process without CUDA, [`Status::UNKNOWN`] for a state of a
    /// newer driver.
    pub fn state(&self, pid: u32) -> Result<State, Status> {
        let mut state = 0;
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.cuda.state)(number(pid)?, &mut state) })?;
        Ok(match state {
            0 => State::Running,
            1 => State::Locked,
            2 => State::Checkpointed,
            3 => State::Failed,
            // To the host, and back. Drivers before CUDA 13.4 say `Locked` and `Checkpointed`.
            4 | 5 => State::Moving,
            _ => return Err(Status::UNKNOWN),
        })
    }

    /// Makes the driver calls of a running process wait until [`Self::unlock`]. Waits at most
    /// `timeout` for the calls under way; a timeout of less than a millisecond is a millisecond. Of
    /// a stopped process, waits until the process is continued, whatever the timeout is.
    ///
    /// # Errors
    /// After any error the process runs on. [`Status::NOT_READY`]: the time is over.
    pub fn lock(&self, pid: u32, timeout: Duration) -> Result<(), Status> {
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let mut arguments = LockArgs {
            // For the driver, 0 means that there is no timeout.
            timeout_ms: timeout.max(1),
            ..LockArgs::default()
        };
        // SAFETY: the argument has the driver's layout and lives during the call.
        checked(unsafe { (self.cuda.lock)(number(pid)?, &mut arguments) })
    }

    /// Moves all GPU memory of a locked process to the host.
    ///
    /// # Errors
    /// Ask for the state after an error. A process with managed memory stays locked and intact
    /// (status 801).
    pub fn checkpoint(&self, pid: u32) -> Result<(), Status> {
        // SAFETY: the second argument is optional.
        checked(unsafe { (self.cuda.checkpoint)(number(pid)?, ptr::null_mut()) })
    }

    /// Moves the memory of a checkpointed process back to the GPUs. The process is locked then.
    ///
    /// # Errors
    /// After any error but 401 the process is lost: it stays checkpointed,
    /// and every later restore fails.
    pub fn restore(&self, pid: u32) -> Result<(), Status> {
        // SAFETY: the second argument is optional.
        checked(unsafe { (self.cuda.restore)(number(pid)?, ptr::null_mut()) })
    }

    /// Lets the waiting calls of a locked process go on.
    ///
    /// # Errors
    /// Status 401 unless the process is locked.
    pub fn unlock(&self, pid: u32) -> Result<(), Status> {
        // SAFETY: the second argument is optional.
        checked(unsafe { (self.cuda.unlock)(number(pid)?, ptr::null_mut()) })
    }

    /// Returns the ordinal of a GPU.
    pub(super) fn ordinal(&self, device: &DeviceId) -> Result<Ordinal, Status> {
        let mut count = 0;
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.cuda.count)(&mut count) })?;
        for index in 0..count {
            let (mut ordinal, mut uuid) = (0, [0; 16]);
            // SAFETY: the driver writes to local variables of the right types.
            checked(unsafe { (self.cuda.device)(&mut ordinal, index) })?;
            // SAFETY: as above.
            checked(unsafe { (self.cuda.uuid)(&mut uuid, ordinal) })?;
            if uuid == device.uuid {
                return Ok(ordinal);
            }
        }
        Err(Status::INVALID_DEVICE)
    }

    /// Retains the primary context of a GPU, and makes it the calling thread's current context.
    pub(super) fn enter(&self, ordinal: Ordinal) -> Result<(), Status> {
        let mut context = ptr::null_mut();
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.cuda.retain)(&mut context, ordinal) })?;
        // SAFETY: the driver has just returned this context.
        checked(unsafe { (self.cuda.set_current)(context) }).inspect_err(|_| {
            let _ = self.leave(ordinal);
        })
    }

    /// Releases the primary context of a GPU, which [`Self::enter`] has retained. The calling
    /// thread has no current context afterwards.
    pub(super) fn leave(&self, ordinal: Ordinal) -> Result<(), Status> {
        // SAFETY: null means no context.
        let left = checked(unsafe { (self.cuda.set_current)(ptr::null_mut()) });
        // SAFETY: the driver checks the ordinal. This process keeps no memory of the context.
        left.and(checked(unsafe { (self.cuda.release)(ordinal) }))
    }

    /// Allocates memory in the current context.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Address, Status> {
        let mut address = 0;
        let bytes = usize::try_from(bytes).map_err(|_| Status::OUT_OF_MEMORY)?;
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.cuda.allocate)(&mut address, bytes) })?;
        Ok(address)
    }

    /// Frees memory of the current context.
    pub(super) fn free(&self, address: Address) -> Result<(), Status> {
        // SAFETY: the address is from `allocate`. No code of this process accesses the memory.
        checked(unsafe { (self.cuda.free)(address) })
    }
}

fn number(pid: u32) -> Result<c_int, Status> {
    c_int::try_from(pid).map_err(|_| Status::INVALID_VALUE)
}

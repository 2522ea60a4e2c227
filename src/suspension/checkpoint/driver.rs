//! The functions of the CUDA driver that suspending and resuming need, behind safe functions.
#![allow(unsafe_code)]

use gpulimit_base::device::DeviceId;
use libloading::os::unix::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

/// The state of a process, as the driver reports it (`CUprocessState`).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// The process runs.
    Running,
    /// The process's calls of the driver wait.
    Locked,
    /// The process's GPU memory is on the host, and its calls of the driver wait.
    Checkpointed,
    /// The process can never use its GPU memory again.
    Failed,
    /// The memory is on its way to the host. Drivers before CUDA 13.4 say `Locked`.
    Checkpointing,
    /// The memory is on its way back. Drivers before CUDA 13.4 say `Checkpointed`.
    Restoring,
    /// A state of a newer driver.
    Other(i32),
}

impl State {
    const fn of(number: i32) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            4 => Self::Checkpointing,
            5 => Self::Restoring,
            other => Self::Other(other),
        }
    }
}

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

/// What this machine lacks to suspend and resume processes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Missing {
    /// The CUDA driver cannot be loaded: the linker's message.
    Driver(String),
    /// The driver lacks the function of this name.
    Function(&'static str),
    /// The driver does not start.
    Init(Status),
    /// NVML does not work: its message.
    Nvml(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(why) => write!(f, "cannot load the CUDA driver: {why}"),
            Self::Function(name) => write!(
                f,
                "this CUDA driver cannot suspend processes, because it has no function {name}: \
                 install driver 570 or later"
            ),
            Self::Init(status) => write!(f, "cuInit fails with {status}: run `gpulimit doctor`"),
            Self::Nvml(why) => write!(
                f,
                "NVML does not answer ({why}): install libnvidia-ml.so.1, a part of the NVIDIA \
                 driver"
            ),
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

/// Declares the structure of the driver's functions, and how to look them up by their names.
macro_rules! functions {
    ($($field:ident: $name:ident($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, Missing> {
                $(
                    let name = stringify!($name);
                    // SAFETY: cuda.h declares the function with this type.
                    let found = unsafe { library.get(name.as_bytes()) };
                    let $field = *found.map_err(|_| Missing::Function(name))?;
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

/// The initialised CUDA driver.
pub(super) struct Cuda(Functions);

fn checked(status: c_int) -> Result<(), Status> {
    match status {
        0 => Ok(()),
        status => Err(Status(status)),
    }
}

impl Cuda {
    /// Loads and initialises the driver. Removes `CUDA_VISIBLE_DEVICES` from the environment of
    /// this process, because a suspended process may use GPUs that the variable hides. Call before
    /// this process starts threads.
    pub(super) fn load() -> Result<Self, Missing> {
        // SAFETY: loading runs the driver's constructors, as in every CUDA program.
        let library = unsafe { Library::new("libcuda.so.1") };
        let library = library.map_err(|error| Missing::Driver(error.to_string()))?;
        let functions = Functions::find(&library);
        // Do not unload the driver, because it may crash then.
        std::mem::forget(library);
        let functions = functions?;
        // SAFETY: the caller promises that no other thread reads the environment.
        unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
        // SAFETY: cuInit has no requirements. The library stays loaded.
        checked(unsafe { (functions.init)(0) }).map_err(Missing::Init)?;
        Ok(Self(functions))
    }

    pub(super) fn state(&self, pid: u32) -> Result<State, Status> {
        let mut state = 0;
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.0.state)(number(pid)?, &mut state) })?;
        Ok(State::of(state))
    }

    /// Locks a process. A `timeout_ms` of 0 means no timeout.
    pub(super) fn lock(&self, pid: u32, timeout_ms: u32) -> Result<(), Status> {
        let mut arguments = LockArgs {
            timeout_ms,
            ..LockArgs::default()
        };
        // SAFETY: the argument has the driver's layout and lives during the call.
        checked(unsafe { (self.0.lock)(number(pid)?, &mut arguments) })
    }

    pub(super) fn checkpoint(&self, pid: u32) -> Result<(), Status> {
        // SAFETY: the second argument is optional.
        checked(unsafe { (self.0.checkpoint)(number(pid)?, ptr::null_mut()) })
    }

    pub(super) fn restore(&self, pid: u32) -> Result<(), Status> {
        // SAFETY: the second argument is optional.
        checked(unsafe { (self.0.restore)(number(pid)?, ptr::null_mut()) })
    }

    pub(super) fn unlock(&self, pid: u32) -> Result<(), Status> {
        // SAFETY: the second argument is optional.
        checked(unsafe { (self.0.unlock)(number(pid)?, ptr::null_mut()) })
    }

    /// Returns the ordinal of a GPU.
    pub(super) fn ordinal(&self, device: &DeviceId) -> Result<Ordinal, Status> {
        let mut count = 0;
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.0.count)(&mut count) })?;
        for index in 0..count {
            let (mut ordinal, mut uuid) = (0, [0; 16]);
            // SAFETY: the driver writes to local variables of the right types.
            checked(unsafe { (self.0.device)(&mut ordinal, index) })?;
            // SAFETY: as above.
            checked(unsafe { (self.0.uuid)(&mut uuid, ordinal) })?;
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
        checked(unsafe { (self.0.retain)(&mut context, ordinal) })?;
        // SAFETY: the driver has just returned this context.
        checked(unsafe { (self.0.set_current)(context) }).inspect_err(|_| {
            let _ = self.leave(ordinal);
        })
    }

    /// Releases the primary context of a GPU, which [`Self::enter`] has retained. The calling
    /// thread has no current context afterwards.
    pub(super) fn leave(&self, ordinal: Ordinal) -> Result<(), Status> {
        // SAFETY: null means no context.
        let left = checked(unsafe { (self.0.set_current)(ptr::null_mut()) });
        // SAFETY: the driver checks the ordinal. This process keeps no memory of the context.
        left.and(checked(unsafe { (self.0.release)(ordinal) }))
    }

    /// Allocates memory in the current context.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Address, Status> {
        let mut address = 0;
        let bytes = usize::try_from(bytes).map_err(|_| Status::OUT_OF_MEMORY)?;
        // SAFETY: the driver writes to a local variable of the right type.
        checked(unsafe { (self.0.allocate)(&mut address, bytes) })?;
        Ok(address)
    }

    /// Frees memory of the current context.
    pub(super) fn free(&self, address: Address) -> Result<(), Status> {
        // SAFETY: the address is from `allocate`. No code of this process accesses the memory.
        checked(unsafe { (self.0.free)(address) })
    }
}

fn number(pid: u32) -> Result<c_int, Status> {
    c_int::try_from(pid).map_err(|_| Status::INVALID_VALUE)
}

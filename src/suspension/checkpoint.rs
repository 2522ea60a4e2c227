//! The driver's functions that move the GPU memory of another process to the host and back
//! (`cuCheckpointProcess…`), and what the procedure around them must know about the GPUs.

mod driver;
mod placeholder;
#[cfg(test)]
mod tests;

use crate::machine::nvml;
use driver::Cuda;
use gpulimit_base::device::DeviceId;
use std::fmt;
use std::time::Duration;

#[allow(unused_imports, reason = "for the verbs that suspend and resume")]
pub use placeholder::Placeholder;

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

/// The driver and NVML, ready to suspend and resume processes.
///
/// All calls block until the driver has done the work, and cannot be cancelled.
pub struct Checkpoints {
    cuda: Cuda,
    gpus: nvml::Driver,
}

impl Checkpoints {
    /// Loads the CUDA driver and NVML into this process. Takes seconds on some machines. Call
    /// before this process starts threads, because the call changes the environment.
    ///
    /// # Errors
    /// What is missing.
    pub fn load() -> Result<Self, Missing> {
        let cuda = Cuda::load()?;
        let gpus = nvml::Driver::load().map_err(|error| Missing::Nvml(error.to_string()))?;
        Ok(Self { cuda, gpus })
    }

    /// Returns the state of a process of this pid namespace. Changes nothing. Waits while the
    /// driver moves the memory of the process, and while the process is stopped.
    ///
    /// # Errors
    /// [`Status::OPERATING_SYSTEM`] for a pid without a process and for a process of another user,
    /// [`Status::NOT_INITIALIZED`] for a process without CUDA.
    pub fn state(&self, pid: u32) -> Result<State, Status> {
        self.cuda.state(pid)
    }

    /// Makes the driver calls of a running process wait until [`Self::unlock`]. Waits at most
    /// `timeout` for the calls under way; a timeout of less than a millisecond is a millisecond. Of
    /// a stopped process, waits until the process is continued, whatever the timeout is.
    ///
    /// # Errors
    /// After any error the process runs on. [`Status::NOT_READY`]: the time is over.
    pub fn lock(&self, pid: u32, timeout: Duration) -> Result<(), Status> {
        // For the driver, 0 means that there is no timeout.
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.cuda.lock(pid, timeout.max(1))
    }

    /// Moves all GPU memory of a locked process to the host.
    ///
    /// # Errors
    /// Ask for the state after an error. A process with managed memory stays locked and intact
    /// (status 801).
    pub fn checkpoint(&self, pid: u32) -> Result<(), Status> {
        self.cuda.checkpoint(pid)
    }

    /// Moves the memory of a checkpointed process back to the GPUs. The process is locked then.
    ///
    /// # Errors
    /// After any error but 401 the process is lost: it stays checkpointed,
    /// and every later restore fails.
    pub fn restore(&self, pid: u32) -> Result<(), Status> {
        self.cuda.restore(pid)
    }

    /// Lets the waiting calls of a locked process go on.
    ///
    /// # Errors
    /// Status 401 unless the process is locked.
    pub fn unlock(&self, pid: u32) -> Result<(), Status> {
        self.cuda.unlock(pid)
    }

    /// Returns NVML, which knows the machine's GPUs.
    pub const fn gpus(&self) -> &nvml::Driver {
        &self.gpus
    }

    /// Returns the free bytes of a GPU; `None` if NVML does not tell.
    pub fn free(&self, device: &DeviceId) -> Option<u64> {
        self.gpus.free(device)
    }

    /// Returns whether NVML lists a process on any GPU, as described at [`nvml::Driver::lists`].
    pub fn lists(&self, pid: u32) -> Option<bool> {
        self.gpus.lists(pid)
    }
}

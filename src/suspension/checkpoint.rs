//! The driver's functions that move the GPU memory of another process to the host and back
//! (`cuCheckpointProcess…`), and what the procedure around them must know about the GPUs.

mod driver;
mod placeholder;
#[cfg(test)]
mod tests;

use crate::machine::nvml;
use driver::Cuda;
pub use driver::{Missing, State, Status};
use gpulimit_base::device::DeviceId;
use std::time::Duration;

pub use placeholder::Placeholder;

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
    /// Names the library or the function that is missing.
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

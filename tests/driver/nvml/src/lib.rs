//! The libnvidia-ml.so.1 (NVML) of the simulated driver. It reports the GPUs, the memory of each
//! GPU, and the processes that hold this memory.
//!
//! The simulated NVML reads only the shared file of the simulated machine. So it works without the
//! simulated libcuda and in any process, even in a forked child.
#![allow(unsafe_code, missing_docs)]

mod code;
mod device;
mod own;
mod process;
mod symbols;
mod system;

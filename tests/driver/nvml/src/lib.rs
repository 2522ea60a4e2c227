//! The libnvidia-ml.so.1 (NVML) of the simulated driver. It reports GPUs, their memory, and their
//! processes.
//!
//! This library reads only the simulated machine's shared file. So it works without libcuda, and in
//! forked children.
#![allow(unsafe_code, missing_docs)]

mod code;
mod device;
mod own;
mod process;
mod symbols;
mod system;

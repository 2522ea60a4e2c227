//! The libnvidia-ml.so.1 (NVML) of the simulated driver: it reports the GPUs, their memory and the
//! processes that hold it.
//!
//! The simulated NVML works without the simulated libcuda, in any process, also in a forked child:
//! it reads only the shared file of the simulated machine.
#![allow(unsafe_code, missing_docs)]

mod code;
mod device;
mod own;
mod process;
mod symbols;
mod system;

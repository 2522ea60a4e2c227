//! The simulated NVIDIA driver: the model of the machine's GPUs that its libcuda and libnvidia-ml
//! share.
//!
//! [`machine`] is the hardware: one shared file that records what every process holds on every GPU.
//! The other modules are one process's side of the driver: contexts, blocks, pools, virtual memory.
//! The C interfaces are in the `cuda` and `nvml` packages beside this one; this package knows no C
//! signature.

pub mod abi;
pub mod array;
pub mod blocks;
pub mod cancel;
pub mod capture;
pub mod checkpoint;
pub mod context;
pub mod device;
pub mod driver;
pub mod grant;
pub mod graph;
pub mod heap;
pub mod ipc;
pub mod knobs;
pub mod machine;
pub mod pool;
pub mod process;
pub mod shared;
pub mod space;
pub mod status;
pub mod stream;
pub mod tiling;
pub mod vmm;
pub mod work;

pub use status::{Outcome, Status};

//! The simulated NVIDIA driver: a model of a machine's GPUs. The simulated libcuda and the
//! simulated libnvidia-ml use this model.
//!
//! The module [`machine`] is the hardware: a shared file that records what every process holds on
//! every GPU. The other modules are the driver inside one process: contexts, blocks, pools, virtual
//! memory. The C interfaces are in the packages `cuda` and `nvml` in this folder.

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

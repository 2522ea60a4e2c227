//! The simulated NVIDIA driver: the model of a machine's GPUs on which both its libcuda and its
//! libnvidia-ml are built.
//!
//! The module [`machine`] is the hardware: one shared file that records what every process holds on
//! every GPU. The other modules are the driver inside one process: contexts, blocks, pools, virtual
//! memory. The C interfaces are in the packages `cuda` and `nvml` in this folder; this package
//! knows no C signature.

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

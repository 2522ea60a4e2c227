//! The simulated NVIDIA driver: a model of a machine's GPUs, for the simulated libcuda and
//! libnvidia-ml.
//!
//! The module [`machine`] is the hardware: a shared file with what every process holds. The other
//! modules are the driver inside one process. The packages `cuda` and `nvml` are the C interfaces.

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
pub mod host;
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

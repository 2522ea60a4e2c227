//! A cgroup for GPU memory.

pub mod device;
pub mod limits;
pub mod units;

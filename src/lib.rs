//! A cgroup for GPU memory.

pub mod device;
pub mod units;

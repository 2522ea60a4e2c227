//! A cgroup for GPU memory.

pub mod device;
pub mod group;
pub mod ledger;
pub mod limits;
mod pages;
pub mod policy;
pub mod units;

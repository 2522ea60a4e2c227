//! A cgroup for GPU memory.

pub mod device;
pub mod group;
pub mod ledger;
pub mod limits;
pub mod order;
// Models map nothing.
#[cfg_attr(all(test, loom), allow(dead_code))]
mod pages;
pub mod policy;
pub mod units;
pub mod version;

//! A cgroup for GPU memory.

pub mod device;
pub mod escaped;
pub mod file_system;
pub mod group;
pub mod held_signals;
mod interrupted;
pub mod ledger;
pub mod limits;
mod name;
pub mod order;
// Models map nothing.
#[cfg_attr(all(test, loom), allow(dead_code))]
mod pages;
pub mod policy;
pub mod proc;
#[cfg(test)]
mod scratch;
pub mod text_file;
pub mod units;
pub mod version;

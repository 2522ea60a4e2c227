//! Containers of OCI runtimes, and the group of each.

pub mod container;
mod mount;
mod process;
mod record;
pub mod state;

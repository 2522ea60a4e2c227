//! The simulated driver behaves as the measured facts say.
//!
//! Every test runs in processes of its own (see `rig`), as a driver's state is its process's.
#![allow(unsafe_code, missing_docs)]

mod arrays;
mod clients;
mod graphs;
mod ipc;
mod knobs;
mod libraries;
mod lifetimes;
mod limits;
mod lookup;
mod processes;
mod rig;
mod sharing;
mod sizes;
mod work;

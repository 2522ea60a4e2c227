//! Tests that the simulated driver behaves as the real driver did when measured.
//!
//! Every test has processes of its own (see `rig`), because a driver's state belongs to one
//! process.
#![allow(unsafe_code, missing_docs)]

mod arrays;
mod checkpoint;
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

//! `gpulimit serve`: who may see, and what is shown, over real sockets on the simulated driver.
#![allow(clippy::unwrap_used, reason = "tests")]

mod access;
mod api;
mod client;
mod events;
mod limits;
mod machines;
mod metrics;
mod odd;
mod rig;
mod scale;
mod scene;
mod schema;
mod sockets;

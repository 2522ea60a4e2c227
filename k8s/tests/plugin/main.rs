//! Tests of the plugin between a test kubelet, which speaks the real protocol over real sockets,
//! and the simulated driver.
#![allow(clippy::unwrap_used, reason = "tests")]

mod allocate;
mod applied;
mod hostile;
mod kubelet;
mod lifecycle;
mod manifests;
mod peer;
mod pods;
mod rig;
mod wire;

//! The Kubernetes device plugin. Kubelet hands out GPU memory in units, and each container with
//! units gets a group whose limit is the memory of these units.
//!
//! ```text
//! kubelet ── ListAndWatch, Allocate, … ──► plugin ──► allocations (records, groups, views)
//!         ◄── Register, List (pods) ────── node   ──► cards (NVML)
//! ```

pub mod allocations;
pub mod api;
pub mod cards;
pub mod grpc;
pub mod library;
pub mod node;
pub mod options;
pub mod plugin;
pub mod pods;
pub mod socket;
pub mod units;

use gpulimit_base::escaped::Escaped;
use std::fmt::Display;

/// Writes a line to the pod's log, escaped: kubelet or a container may have chosen parts of the
/// line.
pub fn say(text: impl Display) {
    use std::io::Write;
    let text = text.to_string();
    let _ = writeln!(std::io::stderr().lock(), "gpulimit-k8s: {}", Escaped(&text));
}

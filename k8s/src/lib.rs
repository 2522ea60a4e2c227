//! The device plugin: Kubernetes hands out GPU memory by the unit, and each container that has some
//! gets a group with that limit.
//!
//! ```text
//! kubelet ── ListAndWatch, GetPreferredAllocation, Allocate ──► plugin ── who has which units ──► allocations: records, groups, views
//!         ◄── Register ──────────────────────────────────────── node           cards: NVML
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

/// Says one line for the log of the pod, escaped: much of it comes from kubelet and from
/// containers. Nobody is there to hear of its failure.
pub fn say(text: impl Display) {
    use std::io::Write;
    let text = text.to_string();
    let _ = writeln!(std::io::stderr().lock(), "gpulimit-k8s: {}", Escaped(&text));
}

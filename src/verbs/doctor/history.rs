//! Checks whether lasting groups keep a history of the GPUs that they use, and their events.

use super::finding::{Check, Finding};
use super::root::remedy;
use gpulimit_group::{Group, Root};
use gpulimit_ledger::Ledger;
use std::io::ErrorKind;
use std::path::Path;

/// The space that the history of a GPU takes, in bytes, with the bills of the group's users.
const SPACE: u64 = 128 << 10;

/// The space that eight events of a trail take, in bytes.
const EVENTS: u64 = 4_096;

/// Reports GPUs whose history a lasting group does not keep: there was no space for it when a
/// program first used the GPU. `None` if the group keeps all of them.
pub(super) fn check(group: &Group, ledger: &Ledger) -> Option<Finding> {
    let devices = ledger.devices().into_iter();
    let missing: Vec<String> = devices
        .filter(|device| !ledger.records(device.index))
        .map(|device| device.id.short().to_string())
        .collect();
    if missing.is_empty() {
        return None;
    }
    let text = format!(
        "group {} keeps no history of {}: the file system of the groups had no space for it",
        group.name(),
        missing.join(", ")
    );
    let mut todo = "the history begins when the next program uses the GPU".to_owned();
    if has_less(group.root(), SPACE) {
        todo = format!(
            "{}; then {todo}",
            remedy(group.root(), ErrorKind::StorageFull)
        );
    }
    Some(Check("history").warning(text, todo))
}

/// Reports the trails that take no more events: the file system has no space left, and space is
/// reserved for a part of the trail only. `names` has the lasting groups with such a trail.
pub(super) fn trails(root: &Root, mut names: Vec<String>) -> Option<Finding> {
    if !has_less(root.path(), EVENTS) {
        return None;
    }
    let is_whole = |trail: Option<Ledger>| trail.is_some_and(|trail| trail.has_whole_trail());
    if root.trail().is_ok_and(|trail| !is_whole(trail)) {
        names.push("jobs outside named groups".into());
    }
    let text = format!(
        "new events are kept only until their group is removed, 95 of each group: the file system \
         of the groups has no space for those of {}",
        names.join(", ")
    );
    let remedy = remedy(root.path(), ErrorKind::StorageFull);
    (!names.is_empty()).then(|| Check("events").warning(text, remedy))
}

/// Returns whether the file system has less than `space` bytes left.
fn has_less(path: &Path, space: u64) -> bool {
    let left = rustix::fs::statvfs(path);
    left.is_ok_and(|left| left.f_blocks > 0 && left.f_bavail.saturating_mul(left.f_frsize) < space)
}

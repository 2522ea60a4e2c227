//! Checks whether lasting groups keep a history of the GPUs that they use.

use super::Finding;
use super::root::remedy;
use gpulimit_group::Group;
use gpulimit_ledger::Ledger;
use std::io::ErrorKind;

/// The space that the history of a GPU takes, in bytes, with the bills of the group's users.
const SPACE: u64 = 128 << 10;

/// Reports GPUs whose history the group should keep, and does not: there was no space for it when a
/// program first used the GPU. `None` if the group keeps all of them.
pub(super) fn check(group: &Group, ledger: &Ledger) -> Option<Finding> {
    let devices = ledger.devices().into_iter();
    let missing: Vec<String> = devices
        .filter(|device| ledger.keeps_history() && !ledger.records(device.index))
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
    let left = rustix::fs::statvfs(group.root());
    let is_full = left
        .is_ok_and(|left| left.f_blocks > 0 && left.f_bavail.saturating_mul(left.f_frsize) < SPACE);
    let begins = "the history begins when the next program uses the GPU";
    Some(Finding::warning(
        "history",
        text,
        match is_full {
            true => format!(
                "{}; then {begins}",
                remedy(group.root(), ErrorKind::StorageFull)
            ),
            false => begins.to_owned(),
        },
    ))
}

//! The key `suspended.max` of groups.

use super::Subject;
use crate::failure::Failure;
use gpulimit_base::units::gib;
use gpulimit_group::Group;
use std::collections::BTreeMap;

/// Returns the reasons why the memory of a set must not be put onto the host: the groups that would
/// pass their `suspended.max`.
pub fn passed(set: &[&Subject]) -> Result<Vec<String>, Failure> {
    let mut added: BTreeMap<String, (Group, u64)> = BTreeMap::new();
    for subject in set {
        for group in subject.group.upwards() {
            let entry = added.entry(group.name().to_owned());
            entry.or_insert((group, 0)).1 += subject.moved();
        }
    }
    let mut reasons = Vec::new();
    for (name, (group, more)) in added {
        let Some(max) = group.rules()?.options.suspended_max else {
            continue;
        };
        let there = suspended(&group)?;
        if there.saturating_add(more) > max {
            reasons.push(format!(
                "group '{name}' may have {max} on the host (suspended.max) and has {there} there, \
                 but {more} would be added: raise suspended.max or suspend fewer processes",
                max = gib(max),
                there = gib(there),
                more = gib(more)
            ));
        }
    }
    Ok(reasons)
}

/// Returns the suspended bytes of a group on all GPUs.
fn suspended(group: &Group) -> Result<u64, Failure> {
    let ledger = group.ledger()?;
    let devices = ledger.devices().into_iter();
    Ok(devices
        .map(|device| ledger.usage(device.index).suspended)
        .fold(0, u64::saturating_add))
}

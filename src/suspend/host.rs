//! The host's memory for suspended processes.

use super::Subject;
use crate::failure::Failure;
use gpulimit_base::proc;
use gpulimit_base::units::gib;
use gpulimit_group::Group;
use std::collections::BTreeMap;

/// Returns the reasons why the memory of a set must not be put onto the host: a group would pass
/// its `suspended.max`, or the host would run short.
pub fn full(subjects: &[Subject], set: &[usize]) -> Result<Vec<String>, Failure> {
    let mut reasons = Vec::new();
    let mut more: BTreeMap<String, (Group, u64)> = BTreeMap::new();
    let mut is_bounded = true;
    for at in set {
        let subject = &subjects[*at];
        let mut has_bound = false;
        for group in subject.group.upwards() {
            has_bound |= group.rules()?.options.suspended_max.is_some();
            let entry = more.entry(group.name().to_owned()).or_insert((group, 0));
            entry.1 += subject.moved();
        }
        is_bounded &= has_bound;
    }
    for (name, (group, more)) in &more {
        let Some(max) = group.rules()?.options.suspended_max else {
            continue;
        };
        let there = suspended(group)?;
        if there.saturating_add(*more) > max {
            reasons.push(format!(
                "group '{name}' may have {max} on the host (suspended.max), has {there}, and \
                 {more} would be added",
                max = gib(max),
                there = gib(there),
                more = gib(*more)
            ));
        }
    }
    let all = set.iter().map(|at| subjects[*at].moved()).sum();
    // Without a bound of a group, a tenth of the memory stays available.
    let available = available()?;
    let usable = if is_bounded {
        available
    } else {
        available - available / 10
    };
    if all > usable {
        reasons.push(format!(
            "the host has {available} of memory available, and {all} would be added: free memory \
             on the host, or suspend fewer processes",
            available = gib(available),
            all = gib(all)
        ));
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

/// Returns the bytes of the host's memory that programs can still use (`MemAvailable`).
fn available() -> Result<u64, Failure> {
    let text = proc::read("/proc/meminfo")
        .map_err(|error| Failure::new(format_args!("cannot read /proc/meminfo: {error}")))?;
    let kib = text.lines().find_map(|line| {
        let value = line.strip_prefix("MemAvailable:")?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.map(|kib| kib.saturating_mul(1024))
        .ok_or_else(|| Failure::new("/proc/meminfo does not say how much memory is available"))
}

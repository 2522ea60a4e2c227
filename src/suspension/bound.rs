//! The key `suspended.max` of groups.

use super::subjects::{Subject, moved};
use crate::words::failure::Failure;
use gpulimit_base::units::gib;
use gpulimit_group::Group;
use gpulimit_ledger::{Errand, NoWitness};
use std::collections::BTreeMap;

/// Returns the reasons why the memory of a set must not be put onto the host: the groups that would
/// pass their `suspended.max`. The memory that other commands are about to put there counts. So of
/// two commands that announce their processes first, and look afterwards, at least one sees the
/// other.
pub fn passed(set: &[&Subject]) -> Result<Vec<String>, Failure> {
    let groups = set.iter().flat_map(|subject| subject.group.upwards());
    let groups: BTreeMap<String, Group> = groups
        .map(|group| (group.name().to_owned(), group))
        .collect();
    let mut reasons = Vec::new();
    for (name, group) in groups {
        let Some(max) = group.rules()?.options.suspended_max else {
            continue;
        };
        let (there, more) = on_host(&group, set)?;
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

/// Returns the bytes of a group that are on the host, and those that are about to come there: of
/// the processes of `set`, and of those that a command suspends. Both are charges, as SUSPENDED in
/// `gpulimit show`: contexts that the group does not count are left out.
fn on_host(group: &Group, set: &[&Subject]) -> Result<(u64, u64), Failure> {
    let ledger = group.ledger()?;
    let (mut there, mut more) = (0_u64, 0_u64);
    let processes = ledger.processes(&NoWitness).into_iter();
    for process in processes.filter(|process| process.alive) {
        let is_wanted = || {
            let mut wanted = set.iter().map(|subject| subject.identity());
            wanted.any(|wanted| wanted.is_same(&process.identity))
        };
        let comes = process.errand == Errand::Suspend || is_wanted();
        for usage in &process.devices {
            match usage.suspended {
                0 if comes => more = more.saturating_add(moved(usage)),
                suspended => there = there.saturating_add(suspended),
            }
        }
    }
    Ok((there, more))
}

//! The limits of jobs' groups in the environment.
//!
//! `gpulimit run` hands the limits of its group down beside the group's name. If the group is gone
//! when a program needs it, as after somebody has emptied its root, the program makes it again.

use super::{PolicyError, value};
use gpulimit_group::{Created, Group, Kind, Root};
use gpulimit_limits::LimitSet;

/// The environment variable with the limits of the group that [`GROUP`](super::GROUP) names and of
/// the groups above it, separated by `/` as in the name. A group that is not a job's has an empty
/// part.
pub const LIMITS: &str = "GPULIMIT_LIMITS";

/// Returns the value of [`LIMITS`] for the programs of a group; `None` if neither the group nor a
/// group above it is a job's.
pub fn hand_down(group: &Group) -> Option<String> {
    let mut levels: Vec<_> = group.upwards().collect();
    levels.reverse();
    let is_job = |group: &Group| group.kind() == Kind::Job;
    let limits = |group: &Group| {
        let rules = is_job(group).then(|| group.rules().ok()).flatten();
        rules.map_or(String::new(), |rules| rules.to_string())
    };
    let handed = levels.iter().any(is_job);
    handed.then(|| levels.iter().map(limits).collect::<Vec<_>>().join("/"))
}

/// Returns the limits of the last group in a value of [`LIMITS`].
pub(super) fn own(handed: &str) -> Option<LimitSet> {
    LimitSet::parse(handed.rsplit('/').next()?)
}

/// Makes those of the group and the groups above it again that are gone and whose limits were
/// `handed` down. While the returned value lives, no clean-up removes the last of them.
pub(super) fn make_again(
    root: &Root,
    group: &str,
    handed: Option<&str>,
) -> Result<Option<Created>, PolicyError> {
    let handed = handed.unwrap_or_default();
    let ends = group.match_indices('/').map(|(end, _)| end);
    let mut made = None;
    for (end, limits) in ends.chain([group.len()]).zip(handed.split('/')) {
        let name = &group[..end];
        let is_gone = || root.group(name).is_err_and(|error| error.is_missing());
        if Kind::of(name) == Kind::Job && !limits.is_empty() && is_gone() {
            let wrong = || {
                value(
                    LIMITS,
                    handed,
                    "expected limits as `gpulimit run` writes them",
                )
            };
            let limits = LimitSet::parse(limits).ok_or_else(wrong)?;
            made = Some(root.create(name, &limits)?);
        }
    }
    Ok(made)
}

//! Compares the existing groups with a policy, and lists the steps that make them match.

use crate::groups::end_of_leases;
use crate::machine::accounts;
use crate::words::failure::Failure;
use gpulimit_group::{Access, Group, Members, Root, effective_user, upwards};
use gpulimit_limits::{Key, LimitSet, OptionKey, Selector};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A group as the policy describes it.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub limits: LimitSet,
    pub access: Access,
}

/// One step of `gpulimit apply`, for one group.
#[derive(Debug)]
pub enum Step {
    Create(Wanted),
    Change {
        wanted: Wanted,
        changes: Vec<Change>,
        /// True if the limits of the group change.
        limits: bool,
        /// True if the owner or the members of the group change.
        access: bool,
    },
    Remove {
        name: String,
        /// Why the group was kept; `None` if it was removed.
        kept: Option<String>,
    },
    /// The step could not be planned, or failed.
    Failed {
        name: String,
        why: String,
    },
}

/// The old and new value of one key of a group. `None` means that the key is not set.
#[derive(Debug, Serialize)]
pub struct Change {
    key: &'static str,
    gpu: Option<String>,
    old: Option<String>,
    new: Option<String>,
}

impl Change {
    /// Describes the change of a key that applies to the whole group, not to one GPU.
    fn new(key: &'static str, old: Option<String>, new: Option<String>) -> Self {
        let gpu = None;
        Self { key, gpu, old, new }
    }
}

/// Lists all steps: first changes, then removals. New groups come before their child groups,
/// removed groups after them.
pub fn steps(
    root: &Root,
    wanted: &[Wanted],
    recorded: &BTreeSet<String>,
) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    for wanted in wanted {
        let step = match root.group(&wanted.name) {
            Err(error) if error.is_missing() => Ok(Some(Step::Create(wanted.clone()))),
            Err(error) => Err(error.into()),
            Ok(group) => change(root, &group, wanted),
        };
        match step {
            Err(failure) if user_can_block(root, &wanted.name) => {
                let (name, why) = (wanted.name.clone(), failure.to_string());
                steps.push(Step::Failed { name, why });
            }
            step => steps.extend(step?),
        }
    }
    for name in recorded.iter().rev() {
        let is_named = wanted.iter().any(|wanted| wanted.name == *name);
        if is_named {
            continue;
        }
        let (name, kept) = (name.clone(), None);
        match root.group(&name) {
            Ok(_) => steps.push(Step::Remove { name, kept }),
            Err(error) if error.is_missing() => {}
            Err(error) if user_can_block(root, &name) => steps.push(Step::Failed {
                name,
                why: error.to_string(),
            }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(steps)
}

/// Returns whether a user other than the caller owns the group or a group above, and so can block
/// changes.
pub fn user_can_block(root: &Root, name: &str) -> bool {
    let is_own = |name: &str| match root.group(name) {
        Ok(group) => group
            .access()
            .is_ok_and(|access| access.owner == Some(effective_user())),
        Err(error) => error.is_missing(),
    };
    !upwards(name).all(is_own)
}

fn change(root: &Root, group: &Group, wanted: &Wanted) -> Result<Option<Step>, Failure> {
    let there = group.past_leases(end_of_leases(), || Ok(group.limits()?.rules()?))?;
    let mut changes = between(&there, &wanted.limits);
    let limits = !changes.is_empty();
    let there = group.access()?;
    let (old, new) = (
        there.owner.map(accounts::user_name),
        wanted.access.owner.map(accounts::user_name),
    );
    // A killed `apply` may have changed the owner of the ledger only, so compare the directory's
    // owner too.
    let below = fs::metadata(group.below_path())
        .ok()
        .map(|about| about.uid());
    if old != new || below != wanted.access.owner {
        // Check now, before any group is changed, that this group can be given to the new owner.
        if let Some(owner) = wanted.access.owner {
            root.check_owner(group, owner)?;
        }
        let old = if old == new {
            below.map(accounts::user_name)
        } else {
            old
        };
        changes.push(Change::new("owner", old, new));
    }
    if there.members != wanted.access.members {
        let [old, new] = [there.members, wanted.access.members].map(|it| Some(members(it)));
        changes.push(Change::new("members", old, new));
    }
    let access = changes
        .iter()
        .any(|change| matches!(change.key, "owner" | "members"));
    Ok((!changes.is_empty()).then(|| Step::Change {
        wanted: wanted.clone(),
        changes,
        limits,
        access,
    }))
}

/// Lists the differences between two sets of limits.
fn between(old: &LimitSet, new: &LimitSet) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut selectors: Vec<Selector> = Vec::new();
    for (selector, _) in old.rules.iter().chain(&new.rules) {
        if !selectors.contains(selector) {
            selectors.push(*selector);
        }
    }
    for selector in selectors {
        for key in Key::ALL {
            let [old, new] = [old, new].map(|set| set.get(selector, key).map(|it| it.to_string()));
            changes.push(Change {
                gpu: match selector {
                    Selector::All => None,
                    Selector::Device(id) => Some(id.to_string()),
                },
                ..Change::new(key.name(), old, new)
            });
        }
    }
    for key in OptionKey::ALL {
        let [old, new] = [old, new].map(|set| Some(set.options.get(key)));
        changes.push(Change::new(key.name(), old, new));
    }
    changes.retain(|change| change.old != change.new);
    changes
}

fn members(members: Members) -> String {
    match members {
        Members::Owner => "owner".into(),
        Members::All => "all".into(),
        Members::UnixGroup(gid) => format!("@{}", accounts::unix_group_name(gid)),
    }
}

impl Step {
    /// Returns the name of the group that this step makes; `None` for other steps.
    pub fn created(&self) -> Option<&str> {
        match self {
            Self::Create(wanted) => Some(&wanted.name),
            _ => None,
        }
    }

    /// Returns the name of the group that this step makes, changes or removes.
    pub fn name(&self) -> &str {
        match self {
            Self::Create(wanted) | Self::Change { wanted, .. } => &wanted.name,
            Self::Remove { name, .. } | Self::Failed { name, .. } => name,
        }
    }

    /// Returns why the step failed; `None` if the step did not fail.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed { why, .. } => Some(why),
            _ => None,
        }
    }

    /// Describes the step as done or as planned. Returns no line for a failed step: the caller
    /// prints its error.
    pub fn lines(&self, done: bool) -> Vec<String> {
        let word = |is, would| if done { is } else { would };
        match self {
            Self::Create(Wanted {
                name,
                limits,
                access,
            }) => vec![format!(
                "{name}: {created}, {limits}, owner {owner}, members {members}",
                created = word("created", "would be created"),
                owner = access.owner.map(accounts::user_name).unwrap_or_default(),
                members = members(access.members)
            )],
            Self::Change {
                wanted, changes, ..
            } => {
                let line = |Change { key, gpu, old, new }: &Change| {
                    let gpu = gpu.as_ref().map(|gpu| format!(" of {gpu}"));
                    let [old, new] = [old, new].map(|side| side.as_deref().unwrap_or("unset"));
                    format!(
                        "{name}: {would_change}{key}{of_gpu} {old} -> {new}",
                        name = wanted.name,
                        would_change = word("", "would change "),
                        of_gpu = gpu.unwrap_or_default()
                    )
                };
                changes.iter().map(line).collect()
            }
            Self::Remove { name, kept: None } => {
                vec![format!("{name}: {}", word("removed", "would be removed"))]
            }
            Self::Remove {
                name,
                kept: Some(why),
            } => vec![format!("{name}: kept, {why}")],
            Self::Failed { .. } => Vec::new(),
        }
    }

    /// Describes the step as JSON, for `apply --json`.
    pub fn json(&self) -> Value {
        match self {
            Self::Create(Wanted {
                name,
                limits,
                access,
            }) => json!({
                "name": name,
                "action": "created",
                "limits": limits.to_string(),
                "owner": access.owner.map(accounts::user_name),
                "members": members(access.members),
            }),
            Self::Change {
                wanted, changes, ..
            } => json!({ "name": wanted.name, "action": "changed", "changes": changes }),
            Self::Remove { name, kept: None } => json!({ "name": name, "action": "removed" }),
            Self::Remove {
                name,
                kept: Some(why),
            } => json!({ "name": name, "action": "kept", "why": why }),
            Self::Failed { name, why } => json!({ "name": name, "action": "failed", "why": why }),
        }
    }
}

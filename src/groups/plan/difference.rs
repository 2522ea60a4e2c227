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
pub struct Step {
    /// The name of the group that this step makes, changes or removes.
    pub name: String,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Create(Wanted),
    Change(Wanted, Vec<Change>),
    Remove,
    /// The group was not removed, for this reason.
    Keep(String),
    /// The step could not be planned, or failed.
    Fail(String),
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

    /// Returns whether the owner or the members of the group change, and not its limits.
    pub fn is_of_access(&self) -> bool {
        matches!(self.key, "owner" | "members")
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
    let mut plan = |name: &str, found: Result<Option<What>, Failure>| {
        let what = match found {
            Err(failure) if user_can_block(root, name) => Some(What::Fail(failure.to_string())),
            found => found?,
        };
        let name = name.to_owned();
        steps.extend(what.map(|what| Step { name, what }));
        Ok::<_, Failure>(())
    };
    for wanted in wanted {
        let found = match root.group(&wanted.name) {
            Err(error) if error.is_missing() => Ok(Some(What::Create(wanted.clone()))),
            Err(error) => Err(error.into()),
            Ok(group) => change(root, &group, wanted),
        };
        plan(&wanted.name, found)?;
    }
    let is_named = |name: &&String| wanted.iter().any(|wanted| wanted.name == **name);
    for name in recorded.iter().rev().filter(|name| !is_named(name)) {
        let found = match root.group(name) {
            Err(error) if error.is_missing() => Ok(None),
            found => found.map(|_| Some(What::Remove)).map_err(Failure::from),
        };
        plan(name, found)?;
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

fn change(root: &Root, group: &Group, wanted: &Wanted) -> Result<Option<What>, Failure> {
    let there = group.past_leases(end_of_leases(), || Ok(group.limits()?.rules()?))?;
    let mut changes = between(&there, &wanted.limits);
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
    Ok((!changes.is_empty()).then(|| What::Change(wanted.clone(), changes)))
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
    /// Describes the step as done or as planned. Returns no line for a failed step: the caller
    /// prints its error.
    pub fn lines(&self, done: bool) -> Vec<String> {
        let word = |is, would| if done { is } else { would };
        let name = &self.name;
        match &self.what {
            What::Create(Wanted { limits, access, .. }) => vec![format!(
                "{name}: {created}, {limits}, owner {owner}, members {members}",
                created = word("created", "would be created"),
                owner = access.owner.map(accounts::user_name).unwrap_or_default(),
                members = members(access.members)
            )],
            What::Change(_, changes) => {
                let line = |Change { key, gpu, old, new }: &Change| {
                    let gpu = gpu.as_ref().map(|gpu| format!(" of {gpu}"));
                    let [old, new] = [old, new].map(|side| side.as_deref().unwrap_or("unset"));
                    format!(
                        "{name}: {would_change}{key}{of_gpu} {old} -> {new}",
                        would_change = word("", "would change "),
                        of_gpu = gpu.unwrap_or_default()
                    )
                };
                changes.iter().map(line).collect()
            }
            What::Remove => vec![format!("{name}: {}", word("removed", "would be removed"))],
            What::Keep(why) => vec![format!("{name}: kept, {why}")],
            What::Fail(_) => Vec::new(),
        }
    }

    /// Describes the step as JSON, for `apply --json`.
    pub fn json(&self) -> Value {
        let name = &self.name;
        match &self.what {
            What::Create(Wanted { limits, access, .. }) => json!({
                "name": name,
                "action": "created",
                "limits": limits.to_string(),
                "owner": access.owner.map(accounts::user_name),
                "members": members(access.members),
            }),
            What::Change(_, changes) => {
                json!({ "name": name, "action": "changed", "changes": changes })
            }
            What::Remove => json!({ "name": name, "action": "removed" }),
            What::Keep(why) => json!({ "name": name, "action": "kept", "why": why }),
            What::Fail(why) => json!({ "name": name, "action": "failed", "why": why }),
        }
    }
}

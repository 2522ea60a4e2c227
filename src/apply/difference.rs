//! What has to be done so that a tree is what it should be.

use crate::accounts;
use crate::failure::Failure;
use crate::groups::end_of_leases;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Group, Members, Root, effective_user, upwards};
use gpulimit_limits::{Key, LimitSet, OptionKey, Selector};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A group as it is to be.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub limits: LimitSet,
    pub access: Access,
}

/// One thing to do.
#[derive(Debug)]
pub enum Step {
    Create(Wanted),
    Change {
        wanted: Wanted,
        changes: Vec<Change>,
        /// Whether the limits are among them.
        limits: bool,
        /// Whether the owner or the members are.
        access: bool,
    },
    Remove {
        name: String,
        /// Why it could not be.
        kept: Option<String>,
    },
    /// Could not be looked at, or done.
    Failed {
        name: String,
        why: String,
    },
}

/// One key that is not what it should be; `None` where nothing is said.
#[derive(Debug)]
pub struct Change {
    key: &'static str,
    gpu: Option<String>,
    old: Option<String>,
    new: Option<String>,
}

/// Everything that has to be done, those above before those below, and removals from the bottom.
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
            Err(failure) if is_users(root, &wanted.name) => {
                let (name, why) = (wanted.name.clone(), failure.to_string());
                steps.push(Step::Failed { name, why });
            }
            step => steps.extend(step?),
        }
    }
    for name in recorded.iter().rev() {
        let is_named = wanted.iter().any(|wanted| wanted.name == *name);
        if !is_named && root.group(name).is_ok() {
            steps.push(Step::Remove {
                name: name.clone(),
                kept: None,
            });
        }
    }
    Ok(steps)
}

/// Whether a user has a say in what is in the way of this group: it, or one above it, is not ours.
pub fn is_users(root: &Root, name: &str) -> bool {
    let ours = |name: &str| match root.group(name) {
        Ok(group) => group
            .access()
            .is_ok_and(|access| access.owner == Some(effective_user())),
        Err(error) => error.is_missing(),
    };
    !upwards(name).all(ours)
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
    // The groups below are the owner's as well; one who was killed may have got as far as the
    // ledger only.
    let below = fs::metadata(group.below_path())
        .ok()
        .map(|about| about.uid());
    if old != new || below != wanted.access.owner {
        // Before anything is changed.
        if let Some(owner) = wanted.access.owner {
            root.check_owner(group, owner)?;
        }
        changes.push(Change {
            key: "owner",
            gpu: None,
            old: if old == new {
                below.map(accounts::user_name)
            } else {
                old
            },
            new,
        });
    }
    if there.members != wanted.access.members {
        changes.push(Change {
            key: "members",
            gpu: None,
            old: Some(members(there.members)),
            new: Some(members(wanted.access.members)),
        });
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

/// What is not the same in both.
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
            let (old, new) = (old.get(selector, key), new.get(selector, key));
            if old != new {
                let text = |size: Option<Size>| size.map(|size| size.to_string());
                changes.push(Change {
                    key: key.name(),
                    gpu: match selector {
                        Selector::All => None,
                        Selector::Device(id) => Some(id.to_string()),
                    },
                    old: text(old),
                    new: text(new),
                });
            }
        }
    }
    for key in OptionKey::ALL {
        let (old, new) = (old.options.get(key), new.options.get(key));
        if old != new {
            changes.push(Change {
                key: key.name(),
                gpu: None,
                old: Some(old),
                new: Some(new),
            });
        }
    }
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
    /// The group that it makes.
    pub fn created(&self) -> Option<&str> {
        match self {
            Self::Create(wanted) => Some(&wanted.name),
            _ => None,
        }
    }

    /// The group that it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Create(wanted) | Self::Change { wanted, .. } => &wanted.name,
            Self::Remove { name, .. } | Self::Failed { name, .. } => name,
        }
    }

    /// Why it could not be done; `None` where it could.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed { why, .. } => Some(why),
            _ => None,
        }
    }

    /// For people; `done`: else it would be. What failed is for standard error.
    pub fn lines(&self, done: bool) -> Vec<String> {
        let word = |is: &str, would: &str| {
            if done {
                is.to_owned()
            } else {
                would.to_owned()
            }
        };
        match self {
            Self::Create(Wanted {
                name,
                limits,
                access,
            }) => vec![format!(
                "{name}: {}, {limits}, owner {}, members {}",
                word("created", "would be created"),
                access.owner.map(accounts::user_name).unwrap_or_default(),
                members(access.members)
            )],
            Self::Change {
                wanted, changes, ..
            } => {
                let line = |change: &Change| {
                    let gpu = change
                        .gpu
                        .as_ref()
                        .map_or(String::new(), |gpu| format!(" of {gpu}"));
                    let text =
                        |side: &Option<String>| side.clone().unwrap_or_else(|| "unset".into());
                    format!(
                        "{}: {}{}{gpu} {} -> {}",
                        wanted.name,
                        word("", "would change "),
                        change.key,
                        text(&change.old),
                        text(&change.new)
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

    /// For programs.
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
            } => {
                let change = |change: &Change| {
                    json!({
                        "key": change.key,
                        "gpu": change.gpu,
                        "old": change.old,
                        "new": change.new,
                    })
                };
                json!({
                    "name": wanted.name,
                    "action": "changed",
                    "changes": changes.iter().map(change).collect::<Vec<_>>(),
                })
            }
            Self::Remove { name, kept: None } => json!({ "name": name, "action": "removed" }),
            Self::Remove {
                name,
                kept: Some(why),
            } => json!({ "name": name, "action": "kept", "why": why }),
            Self::Failed { name, why } => json!({ "name": name, "action": "failed", "why": why }),
        }
    }
}

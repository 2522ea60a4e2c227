//! The users who may run programs in each group of a policy.

use super::Compiler;
use super::group::Planned;
use crate::file::At;
use crate::rules::{Range, Rule, Target};
use gpulimit_group::{Members, upwards};
use std::collections::BTreeMap;

/// The users whom the rules put into one group.
#[derive(Clone, Debug, Default)]
struct Assigned {
    /// The numbers of the rules that put processes into the group.
    rules: Vec<u32>,
    /// The users whom the rules name, as ranges of user ids.
    users: Vec<Range>,
    /// The unix groups whose members the rules put into the group.
    gids: Vec<u32>,
    /// Whether the rules put processes of any user into the group.
    all: bool,
}

type Groups = BTreeMap<String, Planned>;

/// Sets which users may run programs in each group: the key `members`, or else the users whom the
/// rules put there.
pub(super) fn set_members(compiler: &mut Compiler<'_>, rules: &[Rule], groups: &mut Groups) {
    let mut assigned: BTreeMap<String, Assigned> = BTreeMap::new();
    for rule in rules {
        match &rule.target {
            Target::Exempt => {}
            Target::Group(name) => {
                let there = assigned.entry(name.clone()).or_default();
                there.rules.push(rule.number);
                match &rule.unix_group {
                    _ if !rule.user.is_empty() => there.users.extend(&rule.user),
                    Some(groups) => there.gids.extend(&groups.gids),
                    None => there.all = true,
                }
            }
            Target::Each(each) => {
                for (uid, name) in each {
                    let there = assigned.entry(name.clone()).or_default();
                    there.rules.push(rule.number);
                    there.users.push((*uid, *uid));
                }
            }
        }
    }
    for planned in groups.values_mut() {
        let whom = assigned.remove(&planned.group.name).unwrap_or_default();
        let owner = planned.group.owner;
        let needed = whom.needed(owner);
        planned.group.members = match planned.members.clone() {
            None => needed,
            Some(text) => {
                let members = members_value(compiler, &text).unwrap_or(needed);
                if needed != Members::Owner && members != Members::All && members != needed {
                    let why = format!(
                        "group '{}' has members = \"{}\", but rule {} puts other users into the \
                         group: admit these users in 'members', or leave the key 'members' out",
                        planned.group.name,
                        text.value,
                        whom.rules.first().copied().unwrap_or_default()
                    );
                    compiler.wrong(text.line, why);
                }
                members
            }
        };
    }
    widen(groups);
}

impl Assigned {
    fn needed(&self, owner: Option<u32>) -> Members {
        // Root may run programs in every group without being admitted.
        let is_owner =
            |(first, last): &Range| *last == 0 || (first == last && Some(*first) == owner);
        let others = !self.users.iter().all(is_owner);
        match self.gids[..] {
            _ if self.all || (others && !self.gids.is_empty()) => Members::All,
            [] if others => Members::All,
            [] => Members::Owner,
            [gid, ..] if self.gids.iter().all(|there| *there == gid) => Members::UnixGroup(gid),
            _ => Members::All,
        }
    }
}

/// Reads the value of a group's `members` key.
fn members_value(compiler: &mut Compiler<'_>, text: &At<String>) -> Option<Members> {
    match text.value.as_str() {
        "owner" => Some(Members::Owner),
        "all" => Some(Members::All),
        other => match other.strip_prefix('@') {
            Some(name) => {
                let list = At {
                    value: vec![name.to_owned()],
                    line: text.line,
                };
                let groups = compiler.unix_groups(&list);
                groups.first().map(|group| Members::UnixGroup(group.gid))
            }
            None => {
                let why = format!(
                    "invalid value '{}' of members: expected \"owner\", \"all\" or \"@UNIXGROUP\"",
                    other.escape_debug()
                );
                compiler.wrong(text.line, why);
                None
            }
        },
    }
}

/// Admits each group's users to all groups above it, because those groups are charged, too.
fn widen(groups: &mut Groups) {
    let described =
        |Planned { group, .. }: &Planned| (group.name.clone(), group.owner, group.members);
    let below: Vec<_> = groups.values().map(described).collect();
    for (name, owner, members) in below {
        for above in upwards(&name).skip(1) {
            if let Some(planned) = groups.get_mut(above) {
                let group = &mut planned.group;
                let foreign = owner.is_some_and(|owner| owner != 0 && group.owner != Some(owner));
                let others = members != Members::Owner && members != group.members;
                if (foreign || others) && group.members != Members::All {
                    group.members = Members::All;
                    group.widened.clone_from(&planned.members);
                }
            }
        }
    }
}

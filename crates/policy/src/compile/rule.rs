//! The rules of a policy, compiled into rules with user ids and full group names.

use super::group::parts;
use super::names::{UnixGroup, User};
use super::template::{self, Binding, Holes, fill};
use super::{Compiler, NONE};
use crate::file::{At, RuleStanza};
use crate::rules::{Range, Rule, Target, UnixGroups};
use std::collections::BTreeSet;

impl Compiler<'_> {
    pub(super) fn rule(&mut self, number: u32, stanza: &RuleStanza) -> Vec<Rule> {
        let exempt = stanza.group.value == NONE;
        let Some(holes) = Holes::of(&stanza.group.value) else {
            let why = template::unknown(&stanza.group.value);
            self.wrong(stanza.group.line, why);
            return Vec::new();
        };
        let everybody = stanza.user.as_ref().is_some_and(|user| user.value == ["*"]);
        let users = match &stanza.user {
            Some(list) if !everybody => Some(self.users(list)),
            _ => None,
        };
        let unix_groups = stanza
            .unix_group
            .as_ref()
            .map(|list| self.unix_groups(list));
        if holes.group && unix_groups.is_none() {
            self.wrong(
                stanza.group.line,
                format!(
                    "template '{}' makes a group for each unix group, but rule {number} names no \
                     unix group: add unix_group = [\"NAME\", …]",
                    stanza.group.value
                ),
            );
            return Vec::new();
        }
        let globs = |list: &Option<At<Vec<String>>>| {
            list.as_ref()
                .map(|list| list.value.clone())
                .unwrap_or_default()
        };
        let rule = Rule {
            number,
            on_error: stanza.on_error,
            user: users.as_deref().map(ranges).unwrap_or_default(),
            unix_group: None,
            cgroup: globs(&stanza.cgroup),
            executable: globs(&stanza.executable),
            container: globs(&stanza.container),
            target: Target::Exempt,
        };
        if users.as_ref().is_some_and(Vec::is_empty)
            || unix_groups.as_ref().is_some_and(Vec::is_empty)
        {
            // The rule's users do not exist, which has been reported. A rule without them would
            // match every process.
            return Vec::new();
        }
        let mut rules = Vec::new();
        for (group, part) in parts(unix_groups.unwrap_or_default(), holes) {
            let mut rule = rule.clone();
            if !part.is_empty() {
                let members: Vec<User> = part
                    .iter()
                    .flat_map(|group| self.names.members(group))
                    .collect();
                rule.unix_group = Some(UnixGroups {
                    gids: part.iter().map(|group| group.gid).collect(),
                    members: ranges(&members),
                });
            }
            if exempt {
                rule.target = Target::Exempt;
            } else if holes.user {
                let whom = self.whom(users.as_deref(), &part);
                if users.is_none() && part.is_empty() {
                    rule.user = vec![self.names.regular()];
                }
                let mut each = Vec::new();
                for user in whom {
                    let binding = Binding {
                        user: Some((user.name.clone(), user.uid)),
                        group: group.clone(),
                    };
                    each.push((user.uid, fill(&stanza.group.value, &binding)));
                    self.bind(&stanza.group.value, binding);
                }
                each.sort();
                each.dedup_by_key(|(uid, _)| *uid);
                rule.target = Target::Each(each);
            } else {
                let binding = Binding { user: None, group };
                rule.target = Target::Group(fill(&stanza.group.value, &binding));
                if holes.group {
                    self.bind(&stanza.group.value, binding);
                }
            }
            rules.push(rule);
        }
        rules
    }

    /// Returns the users for whom a rule makes groups, one group for each user.
    fn whom(&mut self, users: Option<&[User]>, groups: &[UnixGroup]) -> Vec<User> {
        let members: Vec<User> = groups
            .iter()
            .flat_map(|group| self.names.members(group))
            .collect();
        match users {
            Some(users) if groups.is_empty() => users.to_vec(),
            Some(users) => {
                let is_member = |user: &&User| members.iter().any(|member| member.uid == user.uid);
                users.iter().filter(is_member).cloned().collect()
            }
            None if groups.is_empty() => self.names.all_regular(),
            None => members,
        }
    }
}

/// Returns the users' ids in as few ranges as possible.
fn ranges(users: &[User]) -> Vec<Range> {
    let uids: BTreeSet<u32> = users.iter().map(|user| user.uid).collect();
    let mut ranges: Vec<Range> = Vec::new();
    for uid in uids {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(uid) => *last = uid,
            _ => ranges.push((uid, uid)),
        }
    }
    ranges
}

//! Compiles a policy file: fills placeholders in, replaces names of users by numbers, and finds
//! contradictions.

mod access;
mod clash;
mod coverage;
mod group;
mod names;
mod rule;
mod template;

pub use coverage::uncovered;
pub use names::{Accounts, UnixGroup, User};

use super::file::{At, Mistake, Policy, RuleStanza, Settings};
use super::rules::Rules;
use gpulimit_group::Members;
use names::Names;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use template::{Binding, Holes};

/// The value of a rule's `group` key that exempts processes from limits.
const NONE: &str = "none";

/// A group that the policy file asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedGroup {
    /// The group's name.
    pub name: String,
    /// The group's limits, with the values of `[defaults]` for keys that the group does not set.
    pub settings: Settings,
    /// The user who owns the group; `None` for the user who applies the policy.
    pub owner: Option<u32>,
    /// The users who may run programs in the group, besides its owner.
    pub members: Members,
    /// The value of the key `members`, if `members` admits all users in spite of it.
    pub widened: Option<At<String>>,
    /// The line of the policy file that asks for the group.
    pub line: usize,
}

/// The groups and rules that a policy file asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// The groups, each before the groups below it.
    pub groups: Vec<PlannedGroup>,
    /// The rules in the order of the policy file.
    pub rules: Rules,
    /// Messages about users and unix groups for whom a template can make no group.
    pub left_out: Vec<Mistake>,
}

/// Compiles a policy file. Returns the groups and rules that could be compiled, and all mistakes
/// found in the file.
pub fn compile(policy: &Policy, accounts: &dyn Accounts) -> (Plan, Vec<Mistake>) {
    let mut compiler = Compiler {
        policy,
        names: Names::new(accounts),
        mistakes: policy.mistakes.clone(),
        bindings: BTreeMap::new(),
        left_out: BTreeMap::new(),
    };
    let plan = compiler.plan();
    let mut mistakes = compiler.mistakes;
    mistakes.sort_by(|a, b| (a.line, &a.why).cmp(&(b.line, &b.why)));
    mistakes.dedup();
    (plan, mistakes)
}

struct Compiler<'a> {
    policy: &'a Policy,
    names: Names<'a>,
    mistakes: Vec<Mistake>,
    /// The users and unix groups that fill the placeholders of each template.
    bindings: BTreeMap<String, BTreeSet<Binding>>,
    /// Those of the bindings of each template for which it can make no group.
    left_out: BTreeMap<String, BTreeSet<Binding>>,
}

impl Compiler<'_> {
    fn report(&mut self, line: usize, why: impl Into<String>, absent: bool) {
        self.mistakes.push(Mistake {
            path: PathBuf::from(&self.policy.path),
            line,
            why: why.into(),
            absent,
        });
    }

    fn wrong(&mut self, line: usize, why: impl Into<String>) {
        self.report(line, why, false);
    }

    fn plan(&mut self) -> Plan {
        let policy = self.policy;
        let mut rules = Vec::new();
        let mut all = None;
        // A rule with a mistake may lack one of its conditions, so the rule is not compiled.
        for (number, stanza) in (1..).zip(&policy.rules).filter(|(_, rule)| rule.whole) {
            if let Some(earlier) = all {
                self.wrong(
                    stanza.line,
                    format!(
                        "rule {number} is never reached: rule {earlier}, which comes first, \
                         holds for every process"
                    ),
                );
            }
            if has_no_condition(stanza) {
                self.wrong(
                    stanza.line,
                    format!(
                        "rule {number} has no condition and would hold for every process: add \
                         user, unix_group, cgroup, executable or container, or write user = \"*\" \
                         where every process is meant"
                    ),
                );
            } else if holds_always(stanza) {
                all = Some(number);
            }
            rules.extend(self.rule(number, stanza));
        }
        for group in &policy.groups {
            self.bind_explicitly(group);
        }
        let left_out = self.find_clashes();
        self.close_rules(&mut rules);
        let mut groups = self.groups();
        self.check_targets(&groups);
        access::set_members(self, &rules, &mut groups);
        Plan {
            groups: groups.into_values().map(|planned| planned.group).collect(),
            rules: Rules(rules),
            left_out,
        }
    }

    fn users(&mut self, list: &At<Vec<String>>) -> Vec<User> {
        let mut users = Vec::new();
        for name in &list.value {
            if name == "*" {
                self.wrong(
                    list.line,
                    "'*' means every user and cannot be in a list with names: write user = \
                     \"*\", or list only names",
                );
            } else if let Some(user) = self.names.user(name) {
                users.push(user);
            } else {
                self.report(
                    list.line,
                    format!(
                        "no user '{}' on this machine: give an existing login name or number",
                        name.escape_debug()
                    ),
                    true,
                );
            }
        }
        users
    }

    fn unix_groups(&mut self, list: &At<Vec<String>>) -> Vec<UnixGroup> {
        let mut groups = Vec::new();
        for name in &list.value {
            match self.names.unix_group(name) {
                Some(group) => groups.push(group),
                None => self.report(
                    list.line,
                    format!(
                        "no unix group '{}' on this machine: give one that `getent group` lists",
                        name.escape_debug()
                    ),
                    true,
                ),
            }
        }
        groups
    }
}

/// Returns whether a rule has no condition on processes, such as a user.
fn has_no_condition(stanza: &RuleStanza) -> bool {
    [
        &stanza.user,
        &stanza.unix_group,
        &stanza.cgroup,
        &stanza.executable,
        &stanza.container,
    ]
    .into_iter()
    .all(Option::is_none)
}

/// Returns whether a rule matches every process. The rules after such a rule never apply.
fn holds_always(stanza: &RuleStanza) -> bool {
    let some = |list: &Option<At<Vec<String>>>| {
        list.as_ref()
            .is_some_and(|list| !list.value.iter().any(|glob| glob == "*"))
    };
    // A group for each user means regular users only. The `container` pattern `*` means processes
    // in containers only.
    let each = Holes::of(&stanza.group.value).is_some_and(|holes| holes.user);
    !each
        && stanza.unix_group.is_none()
        && stanza.container.is_none()
        && ![&stanza.user, &stanza.cgroup, &stanza.executable]
            .into_iter()
            .any(some)
}

#[cfg(test)]
mod tests;

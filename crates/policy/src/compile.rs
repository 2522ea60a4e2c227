//! A policy file made definite: templates filled in for every user, names of users and unix groups
//! as numbers, and everything that contradicts itself found.

mod access;
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

/// What `group` of a rule says where there is to be none.
const NONE: &str = "none";

/// A group that is to be there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedGroup {
    /// Its name.
    pub name: String,
    /// Its limits, with the defaults in them.
    pub settings: Settings,
    /// Who owns it; `None`: who applies the policy.
    pub owner: Option<u32>,
    /// Who else may be in it.
    pub members: Members,
    /// Where the file says so.
    pub line: usize,
}

/// What a policy asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// The groups, each before those below it.
    pub groups: Vec<PlannedGroup>,
    /// The rules.
    pub rules: Rules,
}

/// Makes a policy definite, as far as it can be: what cannot is among the mistakes, as is what
/// could not be read.
pub fn compile(policy: &Policy, accounts: &dyn Accounts) -> (Plan, Vec<Mistake>) {
    let mut compiler = Compiler {
        policy,
        names: Names::new(accounts),
        mistakes: policy.mistakes.clone(),
        bindings: BTreeMap::new(),
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
    /// For whom a template is filled in.
    bindings: BTreeMap<String, BTreeSet<Binding>>,
}

impl Compiler<'_> {
    fn say(&mut self, line: usize, why: impl Into<String>, absent: bool) {
        self.mistakes.push(Mistake {
            path: PathBuf::from(&self.policy.path),
            line,
            why: why.into(),
            absent,
        });
    }

    fn wrong(&mut self, line: usize, why: impl Into<String>) {
        self.say(line, why, false);
    }

    fn plan(&mut self) -> Plan {
        let policy = self.policy;
        let mut rules = Vec::new();
        let mut all = None;
        // What is not known of a rule that could not be read is not guessed.
        for (number, stanza) in (1..).zip(&policy.rules).filter(|(_, rule)| rule.whole) {
            if let Some(earlier) = all {
                self.wrong(
                    stanza.line,
                    format!(
                        "rule {number} is never reached: rule {earlier} holds for every process"
                    ),
                );
            }
            if has_no_condition(stanza) {
                self.wrong(
                    stanza.line,
                    format!(
                        "rule {number} has no condition and would hold for every process: add user, \
                         unix_group, cgroup, executable or container, or write user = \"*\" where every \
                         process is meant"
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
        let mut groups = self.groups();
        self.check_targets(&groups);
        access::settle(self, &rules, &mut groups);
        Plan {
            groups: groups.into_values().map(|planned| planned.group).collect(),
            rules: Rules(rules),
        }
    }

    fn users(&mut self, list: &At<Vec<String>>) -> Vec<User> {
        let mut users = Vec::new();
        for name in &list.value {
            if name == "*" {
                self.wrong(list.line, "'*' is every user, so that no other can be beside it: write user = \"*\", or names only");
            } else if let Some(user) = self.names.user(name) {
                users.push(user);
            } else {
                self.say(
                    list.line,
                    format!(
                        "no user '{}' on this machine: give a login name or a number that there is",
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
                None => self.say(
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

/// Whether a rule says of no process that it is meant.
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

/// Whether a rule holds for every process, so that the rules after it are never reached.
fn holds_always(stanza: &RuleStanza) -> bool {
    let some = |list: &Option<At<Vec<String>>>| {
        list.as_ref()
            .is_some_and(|list| !list.value.iter().any(|glob| glob == "*"))
    };
    // With a group for each user it holds for regular users only; the pattern * of a container asks
    // for one.
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

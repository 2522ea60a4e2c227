//! Finds the people of the machine to whom no rule of the policy applies.

use super::names::Accounts;
use crate::rules::{Rule, Rules, is_in};

/// Returns the login names of the people to whom no rule applies. Rules for only some processes of
/// a user do not count.
pub fn uncovered(rules: &Rules, accounts: &dyn Accounts) -> Vec<String> {
    let covering: Vec<&Rule> = rules
        .iter()
        .filter(|rule| covers_whole_users(rule))
        .collect();
    let people = accounts.regular();
    let people: Vec<_> = accounts
        .users()
        .into_iter()
        .filter(|user| is_in(&[people], user.uid))
        .collect();
    if covering.is_empty() {
        return Vec::new();
    }
    let is_covered = |uid: u32| covering.iter().any(|rule| covers(rule, uid));
    let mut left: Vec<String> = people
        .into_iter()
        .filter(|user| !is_covered(user.uid))
        .map(|user| user.name)
        .collect();
    left.sort();
    left.dedup();
    left
}

fn covers_whole_users(rule: &Rule) -> bool {
    rule.cgroup.is_empty() && rule.container.is_empty() && rule.executable.is_empty()
}

fn covers(rule: &Rule, uid: u32) -> bool {
    let groups = rule.unix_group.as_ref();
    (rule.user.is_empty() || is_in(&rule.user, uid))
        && groups.is_none_or(|groups| is_in(&groups.members, uid))
}

//! Finds the people of the machine to whom no rule of the policy applies.

use super::names::{Accounts, User};
use crate::rules::{Rule, Rules, is_in};
use std::collections::BTreeSet;

/// Returns the login names of the people to whom no rule applies. Rules for only some processes of
/// a user do not count.
pub fn uncovered(rules: &Rules, accounts: &dyn Accounts) -> Vec<String> {
    let is_for_whole_users = |rule: &&Rule| {
        rule.cgroup.is_empty() && rule.container.is_empty() && rule.executable.is_empty()
    };
    let covering: Vec<&Rule> = rules.iter().filter(is_for_whole_users).collect();
    if covering.is_empty() {
        return Vec::new();
    }
    let covers = |rule: &Rule, uid: u32| {
        let groups = rule.unix_group.as_ref();
        (rule.user.is_empty() || is_in(&rule.user, uid))
            && groups.is_none_or(|groups| is_in(&groups.members, uid))
    };
    let people = [accounts.regular()];
    let is_left = |user: &User| {
        is_in(&people, user.uid) && !covering.iter().any(|rule| covers(rule, user.uid))
    };
    let left = accounts.users().into_iter().filter(is_left);
    let left: BTreeSet<String> = left.map(|user| user.name).collect();
    left.into_iter().collect()
}

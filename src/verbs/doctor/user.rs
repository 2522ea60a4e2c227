//! Reports the group that a user's programs get, and the rule that assigns this group.

use super::finding::{Check, Finding, Level};
use crate::machine::accounts::{self, Database};
use gpulimit_policy::Facts;
use gpulimit_policy::compile::Accounts;
use gpulimit_policy::rules::{Assigned, Rule, Rules, Source};

/// Reports which group the rules give to a user's programs.
pub(super) fn checks(name: &str) -> Vec<Finding> {
    const CHECK: Check = Check("rules");
    let Some(uid) = accounts::user_id(name) else {
        let remedy = "give a name that `id` knows, or a number";
        return vec![CHECK.error(format!("unknown user '{name}'"), remedy)];
    };
    let rules = match Rules::load(&Source::system()) {
        Err(error) => return vec![CHECK.error(error.to_string(), "")],
        Ok(None) => {
            let text = "this machine has no rules: a program's limit comes from its environment; \
                        `gpulimit apply` makes rules";
            return vec![CHECK.fine(text)];
        }
        Ok(Some(rules)) => rules,
    };
    let known = Database.user(&accounts::user_name(uid));
    let gids = known.as_ref().map(accounts::unix_groups_of);
    let facts = Facts {
        uid,
        gids: gids.unwrap_or_default(),
        ..Facts::default()
    };
    // Rules affect only programs that load libgpulimit.so, so report if not all programs load it.
    let mut findings = vec![super::checks::system_wide()];
    findings.retain(|finding| finding.level != Level::Fine);
    // Rules with further conditions, such as the cgroup, may fit only some processes, so list them
    // separately.
    let mut always = Vec::new();
    for rule in rules.iter() {
        let asks = asks(rule);
        if asks.is_empty() {
            always.push(rule.clone());
            continue;
        }
        let mut alone = rule.clone();
        alone.cgroup.clear();
        alone.container.clear();
        alone.executable.clear();
        if let Ok(Some(assigned)) = Rules(vec![alone]).assigned(&facts) {
            let (number, group) = (rule.number, assigned.group);
            let conditions = asks.join(" and ");
            findings.push(CHECK.fine(format!(
                "rule {number}: a process {conditions} joins {group}, if no earlier rule applies"
            )));
        }
    }
    findings.push(match Rules(always).assigned(&facts) {
        Ok(Some(Assigned { group, rule, .. })) => {
            CHECK.fine(format!("{name} is assigned to {group} by rule {rule}"))
        }
        Ok(None) => CHECK.fine(format!(
            "no rule assigns {name}: a program's limit comes from its environment"
        )),
        Err(error) => {
            let remedy = "correct the policy and run `gpulimit apply` again";
            CHECK.error(error.to_string(), remedy)
        }
    });
    findings
}

/// Lists the conditions of a rule, except for the condition on the user.
fn asks(rule: &Rule) -> Vec<String> {
    let conditions = [
        ("in cgroup", &rule.cgroup),
        ("in container", &rule.container),
        ("that runs", &rule.executable),
    ];
    let asked = conditions
        .into_iter()
        .filter(|(_, globs)| !globs.is_empty());
    asked
        .map(|(what, globs)| format!("{what} {}", globs.join(" or ")))
        .collect()
}

//! Which group a user's programs get, and by which rule.

use super::{Finding, Level};
use crate::accounts::{self, Database};
use gpulimit_policy::Facts;
use gpulimit_policy::compile::Accounts;
use gpulimit_policy::rules::{Rule, Rules, Source};

/// The rules, as they hold for a user.
pub(super) fn checks(name: &str) -> Vec<Finding> {
    const CHECK: &str = "rules";
    let Some(uid) = accounts::user_id(name) else {
        return vec![Finding::error(
            CHECK,
            format!("there is no user {name} here"),
            "name a user as `id` knows it, or a number",
        )];
    };
    let rules = match Rules::load(&Source::system()) {
        Err(error) => return vec![Finding::error(CHECK, error.to_string(), "")],
        Ok(None) => {
            return vec![Finding::fine(
                CHECK,
                "this machine has no rules: limits are as the environment of a program says; `gpulimit apply` makes rules",
            )];
        }
        Ok(Some(rules)) => rules,
    };
    let known = Database.user(&accounts::user_name(uid));
    let facts = Facts {
        uid,
        gids: known
            .as_ref()
            .map(accounts::unix_groups_of)
            .unwrap_or_default(),
        ..Facts::default()
    };
    // A rule holds only for programs that have the library.
    let mut findings = vec![super::checks::system_wide()];
    findings.retain(|finding| finding.level != Level::Fine);
    // What a rule asks beside the user is not known of a user's programs in general.
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
            let text = format!(
                "rule {}: {} in {}, if no rule before it holds",
                rule.number,
                assigned.group,
                asks.join(" and ")
            );
            findings.push(Finding::fine(CHECK, text));
        }
    }
    findings.push(match Rules(always).assigned(&facts) {
        Ok(Some(assigned)) => Finding::fine(
            CHECK,
            format!(
                "{name} is assigned to {} by rule {}",
                assigned.group, assigned.rule
            ),
        ),
        Ok(None) => Finding::fine(
            CHECK,
            format!("no rule assigns {name}: limits are as the environment of a program says"),
        ),
        Err(error) => Finding::error(
            CHECK,
            error.to_string(),
            "`gpulimit apply` again, with the policy as it is to be",
        ),
    });
    findings
}

/// What a rule asks of a process beside whose it is.
fn asks(rule: &Rule) -> Vec<String> {
    let mut asks = Vec::new();
    for (what, globs) in [
        ("a cgroup", &rule.cgroup),
        ("a container", &rule.container),
        ("the program", &rule.executable),
    ] {
        if !globs.is_empty() {
            asks.push(format!("{what} {}", globs.join(" or ")));
        }
    }
    asks
}

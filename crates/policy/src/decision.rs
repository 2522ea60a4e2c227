//! Decides into which group the administrator's rules put a process.

use super::facts::Facts;
use super::glob;
use super::rules::{Assigned, FILE, Rule, Rules, RulesError, Target, UnixGroups, is_in};
use std::path::Path;

impl Rules {
    /// Returns the group of the first rule that matches the process; `None` for an exemption or
    /// without a match.
    pub fn assigned(&self, facts: &Facts) -> Result<Option<Assigned>, RulesError> {
        // In a user namespace, a process can forge its user ids. So the first rule must have no
        // condition.
        if facts.in_user_namespace
            && let Some(first) = self.0.first()
            && !first.is_unconditional()
        {
            return Err(RulesError::Namespace {
                path: Path::new(gpulimit_group::SYSTEM).join(FILE),
            });
        }
        let Some(rule) = self.0.iter().find(|rule| rule.matches(facts)) else {
            return Ok(None);
        };
        let group = match &rule.target {
            Target::Exempt => return Ok(None),
            Target::Group(group) => group,
            Target::Each(groups) => match groups.iter().find(|(uid, _)| *uid == facts.uid) {
                Some((_, group)) => group,
                None => {
                    return Err(RulesError::Unlisted {
                        uid: facts.uid,
                        rule: rule.number,
                    });
                }
            },
        };
        Ok(Some(Assigned {
            group: group.clone(),
            on_error: rule.on_error,
            rule: rule.number,
        }))
    }
}

impl Rule {
    /// Returns whether the rule puts every process into the same group, without any condition.
    fn is_unconditional(&self) -> bool {
        self.user.is_empty()
            && self.unix_group.is_none()
            && self.cgroup.is_empty()
            && self.executable.is_empty()
            && self.container.is_empty()
            && !matches!(self.target, Target::Each(_))
    }

    fn matches(&self, facts: &Facts) -> bool {
        let one = |globs: &[String], text: &[u8]| {
            globs
                .iter()
                .any(|glob| glob::matches(glob.as_bytes(), text))
        };
        let any = |globs: &[String], texts: &[String]| {
            globs.is_empty() || texts.iter().any(|text| one(globs, text.as_bytes()))
        };
        let member = |groups: &UnixGroups| {
            facts.gids.iter().any(|gid| groups.gids.contains(gid))
                || is_in(&groups.members, facts.uid)
        };
        (self.user.is_empty() || is_in(&self.user, facts.uid))
            && self.unix_group.as_ref().is_none_or(member)
            && any(&self.cgroup, &facts.cgroups)
            && any(&self.container, &facts.containers)
            && (self.executable.is_empty() || one(&self.executable, &facts.executable))
    }
}

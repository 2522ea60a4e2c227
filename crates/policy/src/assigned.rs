//! Finds the group that the administrator's rules assign to a process.

use super::facts::Facts;
use super::rules::{Assigned, Rules, Source};
use super::{Assignment, Environment, LIMITS, PolicyError, asked, text};
use gpulimit_group::{GroupError, MAX_DEPTH, Root, check_name, is_within};

/// Returns the group to which the rules in `source` assign this process, if they assign one.
pub(super) fn by_rules(source: &Source) -> Result<Option<Assigned>, PolicyError> {
    let Some(rules) = Rules::load(source)? else {
        Rules::check_hidden(source)?;
        return Ok(None);
    };
    Ok(rules.assigned(&Facts::of_self(&rules)?)?)
}

/// Returns the group of a process that `rule` matches, in the rule's root: the rule's group, or a
/// requested group below it.
pub(super) fn below(
    source: &Source,
    rule: Assigned,
    env: &Environment<'_>,
) -> Result<Assignment, PolicyError> {
    let root = Root::at(source.root.clone())?;
    let (group, create) = match asked(env)? {
        Some((name, None)) => (existing(&root, &rule, name)?, None),
        Some((name, request)) => (relative(&rule, &name)?, request),
        // The limit of the rule's group holds also if another tool's variable says "no limit".
        None => (rule.group.clone(), None),
    };
    Ok(Assignment {
        root,
        group,
        create,
        handed: text(env, LIMITS)?,
        rule: Some(rule),
    })
}

/// Returns the full name of a group below the rule's group. `name` may lack the rule's group.
fn existing(root: &Root, rule: &Assigned, name: String) -> Result<String, PolicyError> {
    if is_within(&name, &rule.group) {
        return Ok(name);
    }
    let not_below = |named: String| PolicyError::NotBelow {
        rule: rule.clone(),
        elsewhere: root.group(&named).is_ok(),
        named,
    };
    let below = relative(rule, &name).map_err(|_| not_below(name.clone()))?;
    match root.group(&below) {
        Err(GroupError::Missing { .. }) => Err(not_below(name)),
        // Errors other than a missing group are reported when the process joins the group.
        _ => Ok(below),
    }
}

fn relative(rule: &Assigned, name: &str) -> Result<String, PolicyError> {
    if is_within(name, &rule.group) {
        return Ok(name.into());
    }
    let below = format!("{}/{name}", rule.group);
    match check_name(&below) {
        Ok(()) => Ok(below),
        Err(_) if below.split('/').count() > MAX_DEPTH => Err(PolicyError::Assigned {
            rule: rule.clone(),
            group: below.clone(),
            error: Box::new(GroupError::Name { name: below }),
        }),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::{FILE, OnError, Rule, Target};
    use super::*;
    use gpulimit_base::units::Size;
    use gpulimit_limits::LimitSet;
    use gpulimit_support::Scratch;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// A root with the groups `lab`, `lab/alice`, `lab/alice/train` and `lab/bob`.
    struct Place(
        Source,
        #[expect(dead_code, reason = "the directory is removed with the test")] Scratch,
    );

    impl Place {
        fn new() -> Self {
            let scratch = Scratch::new();
            let path = scratch.0.clone();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
            let owner = fs::metadata(&path).expect("there").uid();
            let root = Root::at(&path).expect("a root");
            for name in ["lab", "lab/alice", "lab/alice/train", "lab/bob"] {
                root.create(name, &LimitSet::all(Size::Max)).expect("made");
            }
            Self(Source { root: path, owner }, scratch)
        }

        fn below(&self, variables: &[(&str, &str)]) -> Result<Assignment, PolicyError> {
            let env = |name: &str| {
                let found = variables.iter().find(|(there, _)| *there == name);
                found.map(|(_, value)| (*value).into())
            };
            below(&self.0, alice(), &env)
        }

        #[track_caller]
        fn refused(&self, variables: &[(&str, &str)]) -> String {
            self.below(variables).expect_err("refused").to_string()
        }
    }

    fn alice() -> Assigned {
        Assigned {
            group: "lab/alice".into(),
            on_error: OnError::Open,
            rule: 2,
        }
    }

    #[test]
    fn the_environment_chooses_only_groups_below_the_assigned_one() {
        let place = Place::new();
        for (name, expected) in [
            ("lab/alice", "lab/alice"),
            ("lab/alice/train", "lab/alice/train"),
            ("train", "lab/alice/train"),
        ] {
            let found = place.below(&[("GPULIMIT_GROUP", name)]).expect(name);
            assert_eq!(found.group, expected);
            assert_eq!(found.root.path(), place.0.root);
            assert_eq!(found.is_by_rule_alone(), name == "lab/alice");
        }
        for name in ["lab", "lab/bob", "bob", "other", "lab/alicia", "job-1-2"] {
            let said = place.refused(&[("GPULIMIT_GROUP", name)]);
            assert!(
                said.contains("assigned to group lab/alice by rule 2")
                    && said.contains(&format!("'{name}'")),
                "{said}"
            );
        }
        let said = place.refused(&[("GPULIMIT_GROUP", "../bob")]);
        assert!(said.contains("invalid group name '../bob'"), "{said}");
    }

    #[test]
    fn another_root_in_the_environment_has_no_effect() {
        let place = Place::new();
        let found = place
            .below(&[("GPULIMIT_ROOT", "/nowhere")])
            .expect("assigned");
        assert_eq!(found.root.path(), place.0.root);
        assert_eq!((found.group.as_str(), found.create), ("lab/alice", None));
    }

    #[test]
    fn a_jobs_group_is_made_below_the_assigned_one() {
        let place = Place::new();
        let found = place.below(&[("GPULIMIT_MAX", "1G")]).expect("assigned");
        assert!(found.group.starts_with("lab/alice/job-"), "{found:?}");
        assert!(found.create.is_some() && !found.is_by_rule_alone());
        // The library sets `GPULIMIT_GROUP` to this name for the program's children when the
        // program starts.
        let variables = [("GPULIMIT_MAX", "1G"), ("GPULIMIT_GROUP", "job-1-2")];
        let found = place.below(&variables).expect("assigned");
        assert_eq!(found.group, "lab/alice/job-1-2");
        // If another tool's variable says "no limit", the limit of the assigned group still holds.
        let variables = [
            ("CUDA_DEVICE_MEMORY_LIMIT", "0"),
            ("GPULIMIT_GROUP", "job-1-2"),
        ];
        for variables in [&variables[..1], &variables] {
            let found = place.below(variables).expect("assigned");
            assert_eq!((found.group.as_str(), found.create), ("lab/alice", None));
        }
        let said = place.refused(&[("GPULIMIT_MAX", "lots")]);
        assert!(said.contains("GPULIMIT_MAX='lots'"), "{said}");
    }

    #[test]
    fn only_the_rules_own_group_can_be_left_open() {
        let place = Place::new();
        assert!(place.below(&[]).expect("assigned").is_open());
        let chosen = place.below(&[("GPULIMIT_GROUP", "train")]);
        assert!(!chosen.expect("assigned").is_open());
    }

    #[test]
    fn a_rule_for_an_executable_applies_to_this_process() {
        let place = Place::new();
        let rule = |executable: &str| Rule {
            number: 1,
            on_error: OnError::Closed,
            user: Vec::new(),
            unix_group: None,
            cgroup: Vec::new(),
            executable: vec![executable.into()],
            container: Vec::new(),
            target: Target::Group("lab".into()),
        };
        let write = |rules: Rules| {
            let path = place.0.root.join(FILE);
            fs::write(&path, rules.to_string()).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
        };
        assert_eq!(by_rules(&place.0).expect("no rules"), None);
        write(Rules(vec![rule("/no/such/program")]));
        assert_eq!(by_rules(&place.0).expect("no rule"), None);
        write(Rules(vec![rule("/no/such/program"), rule("*/deps/*")]));
        let found = by_rules(&place.0).expect("a rule").expect("assigned");
        assert_eq!(found.group, "lab");
    }

    #[test]
    fn a_missing_assigned_group_is_made_by_the_administrator() {
        let place = Place::new();
        let assignment = place.below(&[]).expect("assigned");
        for name in ["lab/alice/train", "lab/alice"] {
            assignment.root.remove(name).expect("removed");
        }
        let error = assignment
            .join(&Vec::new, &|_| None)
            .err()
            .expect("refused");
        let said = error.to_string();
        assert!(
            said.contains("no group lab/alice") && said.contains("gpulimit apply"),
            "{said}"
        );
    }
}

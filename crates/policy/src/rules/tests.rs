use super::*;
use crate::facts::Facts;
use gpulimit_support::Scratch;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A root of the test's own, which is removed with the test.
struct Place(
    Source,
    #[expect(dead_code, reason = "the directory is removed with the test")] Scratch,
);

impl Place {
    fn new() -> Self {
        let scratch = Scratch::new();
        let root = scratch.0.clone();
        mode(&root, 0o755);
        let owner = fs::metadata(&root).expect("there").uid();
        Self(Source { root, owner }, scratch)
    }

    fn file(&self) -> PathBuf {
        self.0.root.join(FILE)
    }

    fn with(rules: &Rules) -> Self {
        let place = Self::new();
        fs::write(place.file(), rules.to_string()).expect("written");
        mode(&place.file(), 0o644);
        place
    }

    fn load(&self) -> Result<Option<Rules>, RulesError> {
        Rules::load(&self.0)
    }

    #[track_caller]
    fn error(&self) -> String {
        self.load().expect_err("refused").to_string()
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

fn group(name: &str) -> Target {
    Target::Group(name.into())
}

/// Returns rules that contain every kind of condition and target.
fn rules() -> Rules {
    Rules(vec![
        Rule {
            user: vec![(0, 0), (7, 9)],
            ..Rule::of_everybody(1, Target::Exempt)
        },
        Rule {
            on_error: OnError::Open,
            unix_group: Some(UnixGroups {
                gids: vec![100, 101],
                members: vec![(1000, 1001)],
            }),
            ..Rule::of_everybody(
                2,
                Target::Each(vec![(1000, "lab/alice".into()), (1001, "lab/bob".into())]),
            )
        },
        Rule {
            cgroup: vec!["/system.slice/*".into(), "/a b/?".into()],
            executable: vec!["/opt/*".into()],
            ..Rule::of_everybody(3, group("services"))
        },
        Rule {
            container: vec!["*".into()],
            ..Rule::of_everybody(4, group("containers"))
        },
        Rule {
            user: vec![(5000, 5000)],
            ..Rule::of_everybody(5, Target::Each(Vec::new()))
        },
    ])
}

fn user(uid: u32) -> Facts {
    Facts {
        uid,
        ..Facts::default()
    }
}

fn assigned(facts: &Facts) -> Option<String> {
    let assigned = rules().assigned(facts).expect("clear");
    assigned.map(|assigned| assigned.group)
}

#[test]
fn rules_read_back() {
    for rules in [rules(), Rules::default()] {
        let place = Place::with(&rules);
        assert_eq!(place.load().expect("read"), Some(rules));
    }
}

#[test]
fn a_root_without_a_file_has_no_rules() {
    let place = Place::new();
    assert_eq!(place.load().expect("looked"), None);
    let nowhere = Source {
        root: place.file().join("nowhere"),
        ..place.0.clone()
    };
    assert_eq!(Rules::load(&nowhere).expect("looked"), None);
}

#[test]
fn the_first_rule_whose_conditions_all_hold_decides() {
    assert_eq!(assigned(&user(8)), None);
    assert_eq!(assigned(&user(1001)).as_deref(), Some("lab/bob"));
    assert_eq!(assigned(&user(4000)), None);
    let service = Facts {
        cgroups: vec!["/x".into(), "/system.slice/a/b".into()],
        executable: b"/opt/a".into(),
        ..user(4000)
    };
    assert_eq!(assigned(&service).as_deref(), Some("services"));
    let other = Facts {
        executable: b"/usr/a".into(),
        ..service.clone()
    };
    assert_eq!(assigned(&other), None);
    let contained = Facts {
        containers: vec!["ab".into()],
        ..other
    };
    assert_eq!(assigned(&contained).as_deref(), Some("containers"));
    let exempt = Facts { uid: 0, ..service };
    assert_eq!(assigned(&exempt), None);
}

#[test]
fn in_a_user_namespace_only_a_first_rule_for_everybody_is_believed() {
    let somewhere = Facts {
        in_user_namespace: true,
        ..user(4000)
    };
    let assigned = |rules: &Rules| {
        let found = rules
            .assigned(&somewhere)
            .map_err(|error| error.to_string());
        found.map(|assigned| assigned.map(|assigned| assigned.group))
    };
    assert_eq!(assigned(&Rules::everybody("view")), Ok(Some("view".into())));
    assert_eq!(assigned(&Rules::default()), Ok(None));
    for first in rules().0 {
        let everybody = Rule::of_everybody(2, group("all"));
        let error = assigned(&Rules(vec![first, everybody])).expect_err("closed");
        assert!(error.contains("in a user namespace"), "{error}");
    }
    let each = Rule::of_everybody(1, Target::Each(vec![(4000, "a".into())]));
    assert!(assigned(&Rules(vec![each])).is_err());
}

#[test]
fn an_assigned_group_names_its_rule() {
    let found = rules().assigned(&user(1000)).expect("clear");
    let expected = Assigned {
        group: "lab/alice".into(),
        on_error: OnError::Open,
        rule: 2,
    };
    assert_eq!(found, Some(expected));
}

#[test]
fn a_user_without_a_group_for_each_user_is_refused() {
    let new = Facts {
        gids: vec![101],
        ..user(1002)
    };
    let error = rules().assigned(&new).expect_err("closed").to_string();
    assert!(rules().assigned(&user(5000)).is_err(), "not even one");
    assert!(
        error.contains("rule 2") && error.contains("1002") && error.contains("apply"),
        "{error}"
    );
}

#[test]
fn rules_that_another_user_could_write_are_an_error() {
    let place = Place::with(&rules());
    mode(&place.file(), 0o664);
    assert!(place.error().contains("mode 0664"), "{}", place.error());
    mode(&place.file(), 0o644);
    mode(&place.0.root, 0o1777);
    assert!(place.error().contains("mode 1777"), "{}", place.error());
    mode(&place.0.root, 0o755);
    let foreign = Source {
        owner: place.0.owner + 1,
        ..place.0.clone()
    };
    let error = Rules::load(&foreign).expect_err("refused").to_string();
    assert!(error.contains("belongs to user"), "{error}");

    fs::remove_file(place.file()).expect("removed");
    symlink("/dev/null", place.file()).expect("linked");
    assert!(place.error().contains("cannot read"), "{}", place.error());
    fs::remove_file(place.file()).expect("removed");
    fs::create_dir(place.file()).expect("made");
    assert!(place.error().contains("plain"), "{}", place.error());
}

#[test]
fn rules_of_another_version_are_named_as_such() {
    let place = Place::new();
    fs::write(place.file(), "gpulimit-rules 2\nanything\n").expect("written");
    mode(&place.file(), 0o644);
    assert!(place.error().contains("version"), "{}", place.error());
}

#[test]
fn damaged_rules_are_an_error_and_never_no_rules() {
    let good = rules().to_string();
    let mut wrong: Vec<String> = [
        "",
        "\n",
        "gpulimit-rules 1",
        "gpulimit-rules 1\n",
        "gpulimit-rules 1\nend 0 0\n",
    ]
    .map(str::to_owned)
    .into();
    // For each line, add two wrong texts: one without the line, and one with the line twice.
    let lines: Vec<&str> = good.split_inclusive('\n').collect();
    for at in 0..lines.len() {
        wrong.push([&lines[..at], &lines[at + 1..]].concat().concat());
        wrong.push([&lines[..=at], &lines[at..]].concat().concat());
    }
    for text in wrong {
        assert!(text::read(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn no_random_change_is_taken_for_rules() {
    let good = rules().to_string().into_bytes();
    let mut random = gpulimit_support::random();
    let mut random = move |below: usize| random.usize(..below);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes.truncate(at.max(1)),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"0 \n-x\xff"[random(6)]),
            }
            if bytes.is_empty() {
                break;
            }
        }
        if bytes != good {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(text::read(&bytes).is_err(), "{text}");
        }
    }
}

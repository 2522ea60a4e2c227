//! `create`

use crate::place::{GIB, GPU, Place};
use gpulimit_base::units::Size;
use gpulimit_limits::{Key, LimitSet, OnLimit, OptionKey, Selector};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_limit_of_zero_causes_a_warning() {
    let place = Place::new();
    for arguments in [
        &["create", "lab", "--max", "0"][..],
        &["set", "lab", "max=0"],
        &["run", "--max", "0", "--", "true"],
    ] {
        let output = place.output(arguments);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("max=max is no limit"),
            "{arguments:?}: {said}"
        );
    }
    assert_eq!(
        place.said(&["set", "lab", "--min", "0"]),
        "lab: min=0 applied to all GPUs\n"
    );
}

#[test]
fn each_key_is_an_option() {
    let place = Place::new();
    let values = [
        ("on_limit", "wait"),
        ("wait_timeout", "5m"),
        ("pressure_timeout", "7s"),
        ("oom", "kill-group"),
        ("count_context", "no"),
        ("suspended.max", "64GiB"),
    ];
    assert_eq!(
        values.map(|(key, _)| key),
        OptionKey::ALL.map(OptionKey::name)
    );
    let options = values.map(|(key, value)| [format!("--{}", key.replace('_', "-")), value.into()]);
    let options: Vec<&str> = options.iter().flatten().map(String::as_str).collect();
    place.said(&[&["create"], &options[..], &["lab", "--max", "8G"]].concat());
    place.said(&["create", "other"]);
    place.said(&[&["set", "other", "max=8G"], &options[..]].concat());
    for group in ["lab", "other"] {
        for (key, value) in values.into_iter().chain([("max", "8GiB")]) {
            assert_eq!(place.said(&["get", group, key]), format!("{value}\n"));
        }
    }
}

#[test]
fn create_makes_a_group_with_its_limits() {
    let place = Place::new();
    assert_eq!(
        place.said(&["create", "lab", "max=8G", "on_limit=wait"]),
        "lab: created, max 8GiB, on_limit wait\n"
    );
    let uuid = GPU.to_string();
    place.said(&[
        "create",
        "lab/alice",
        "max=25%",
        "low=1G",
        "--device",
        &uuid,
    ]);
    let rules = |name: &str| {
        let limits = place.root().group(name).expect("there").limits();
        limits.expect("read").rules().expect("rules")
    };
    let mut lab = LimitSet::all(Size::Bytes(8 * GIB));
    lab.options.on_limit = OnLimit::Wait;
    assert_eq!(rules("lab"), lab);
    let mut alice = LimitSet::default();
    alice.set(Selector::Device(GPU), Key::Max, Size::Percent(2500));
    alice.set(Selector::Device(GPU), Key::Low, Size::Bytes(GIB));
    assert_eq!(rules("lab/alice"), alice);
    let out = place.said(&["create", "lab/bob", "max=9G"]);
    assert!(
        out.contains("max=9GiB is above max=8GiB of group lab"),
        "{out}"
    );
}

#[test]
fn create_does_not_change_an_existing_group() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    let error = place.refused(1, &["create", "lab", "max=8G"]);
    assert!(error.contains("gpulimit set lab KEY=VALUE"), "{error}");
    assert_eq!(place.said(&["get", "lab", "max"]), "4GiB\n");
}

#[test]
fn create_makes_parent_groups_only_on_request() {
    let place = Place::new();
    let error = place.refused(1, &["create", "a/b/c", "max=8G"]);
    assert!(error.contains("no group 'a/b'"), "{error}");
    assert_eq!(place.said(&["show", "--names"]), "");
    place.said(&["create", "a/b/c", "max=8G", "--parents"]);
    assert_eq!(place.said(&["show", "--names"]), "a\na/b\na/b/c\n");
    assert_eq!(place.said(&["get", "a/b", "max"]), "max\n");
}

#[test]
fn invalid_groups_are_refused_before_any_change() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["create", "a b"][..], "invalid group name"),
        (&["create", "a/../b"], "invalid group name"),
        (&["create", "1/2/3/4/5/6/7/8/9"], "up to 8"),
        (&["create", "run-1-2"], "single jobs"),
        (&["create", "lab/job-1-2"], "single jobs"),
        (&["create", "lab", "max"], "KEY=VALUE"),
        (&["create", "lab", "max=lots"], "invalid size 'lots'"),
        (
            &["create", "lab", "--owner", "nobody of this name"],
            "unknown user",
        ),
        (
            &["create", "lab", "--members", "@no such group"],
            "unknown unix group",
        ),
        (
            &["create", "lab", "--members", "some"],
            "invalid --members 'some'",
        ),
        (&["create", "lab", "max=1G", "--device", "7"], "doctor"),
    ] {
        let error = place.refused(2, arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert!(!place.root_path().exists(), "something was made");
}

#[test]
fn members_decides_who_may_write_the_ledger() {
    let place = Place::new();
    for (name, members, mode) in [("one", "owner", 0o600), ("all", "all", 0o666)] {
        place.said(&["create", name, "--members", members]);
        let group = place.root().group(name).expect("there");
        let ledger = fs::metadata(group.ledger_path()).expect("there");
        assert_eq!(ledger.permissions().mode() & 0o777, mode, "{name}");
    }
}

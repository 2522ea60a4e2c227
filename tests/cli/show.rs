//! `show`

use crate::place::{CAPACITY, GIB, GPU, Nothing, Place, text, words};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use gpulimit_ledger::Category;
use gpulimit_limits::{Key, Selector};
use serde_json::Value;
use std::fs;
use std::process::Stdio;

#[test]
fn an_empty_root_is_reported_without_an_error() {
    let place = Place::new();
    for verb in ["show", "ps"] {
        let output = place.output(&[verb]);
        assert!(
            output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
        assert!(
            text(&output.stderr).contains("gpulimit run --max 4G"),
            "{output:?}"
        );
    }
    assert_eq!(
        place.json(&["show", "--json"])["groups"],
        serde_json::json!([])
    );
    assert_eq!(
        place.json(&["ps", "--json"])["processes"],
        serde_json::json!([])
    );
    assert!(!place.root_path().exists(), "show created the root");
}

#[test]
fn show_prints_unknown_figures_as_dash_or_null() {
    let place = Place::new();
    place.group("lab", Size::Percent(5000));
    let out = place.said(&["show"]);
    let row = out.lines().nth(1).expect("a row");
    assert_eq!(words(row), ["lab", "all", "50%", "-", "-", "-", "-", "0"]);
    // The limit is a percentage of a GPU whose size is unknown.
    let group = place.root().group("lab").expect("there");
    group
        .write_limits(|set| set.set(Selector::Device(GPU), Key::Max, Size::Percent(1000)))
        .expect("written");
    let gpu = &place.json(&["show", "--json"])["groups"][0]["gpus"][0];
    assert_eq!(gpu["uuid"], GPU.to_string());
    assert!(
        gpu["max"].is_null() && gpu["free"].is_null() && gpu["index"].is_null(),
        "{gpu}"
    );
    assert_eq!(gpu["usage"], 0);
}

#[test]
fn show_prints_the_figures_of_a_member() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = place.member("lab");
    member
        .charge(&device, 3 * GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let refusal = member
        .charge(&device, 2 * GIB, &Nothing, Insistence::Full)
        .expect_err("full");
    member.count_refusal(&device, "cuMemAlloc", 2 * GIB, &refusal);
    member.uncharge(&device, GIB);
    member.publish(&device, Category::Linear, GIB);
    member.publish(&device, Category::Managed, GIB / 2);
    member.publish(&device, Category::Driver, GIB / 4);
    member.publish_idle(&device, GIB / 4);

    let json = place.json(&["show", "lab", "--json"]);
    assert_eq!(json["schema"], 1);
    let gpu = &json["groups"][0]["gpus"][0];
    for (key, expected) in [
        ("capacity", CAPACITY),
        ("max", 4 * GIB),
        ("usage", 2 * GIB - GIB / 4),
        ("peak", 3 * GIB),
        ("free", 2 * GIB),
        ("refusals", 1),
        ("processes", 1),
    ] {
        assert_eq!(gpu[key], expected, "{key}: {gpu}");
    }
    let out = place.said(&["show"]);
    let row = words(out.lines().nth(1).expect("a row")).join(" ");
    assert_eq!(row, "lab GPU-1a2b… 4.0 GiB 1.8 GiB 3.0 GiB 2.0 GiB 1 1");

    let process = &place.json(&["ps", "--json"])["processes"][0];
    for (key, expected) in [
        ("pid", u64::from(std::process::id())),
        ("allocations", GIB),
        ("linear", GIB),
        ("arrays", 0),
        ("pools", 0),
        ("managed", GIB / 2),
        ("driver", GIB / 4),
        ("total", 2 * GIB - GIB / 4),
    ] {
        assert_eq!(process[key], expected, "{key}: {process}");
    }
    assert_eq!(process["group"], "lab");
    assert_eq!(process["state"], "running");
    let out = place.said(&["ps", "lab"]);
    assert!(
        out.contains(&std::process::id().to_string()) && out.contains("running"),
        "{out}"
    );
    assert!(
        !out.contains('\u{1b}'),
        "colours where there is no terminal"
    );
}

#[test]
fn show_reports_a_group_of_another_version() {
    let place = Place::new();
    place.group("new", Size::Max);
    place.group("old", Size::Max);
    let path = place.root_path().join("new/limits");
    let mut bytes = fs::read(&path).expect("read");
    bytes[8] = 1;
    fs::write(&path, bytes).expect("written");
    let output = place.output(&["show", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("new/limits has file format 1, but this gpulimit reads file format 3"),
        "{error}"
    );
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["groups"][0]["name"], "old");
    place.refused(125, &["run", "--name", "new", "--max", "4G", "--", "true"]);
}

/// A group that a gpulimit before the history has made: its ledger has format 2.
#[test]
fn a_ledger_of_format_2_is_named_with_a_remedy() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let path = place.root_path().join("lab/ledger");
    let magic = u64::from_le_bytes(*b"gpulimit");
    let preface = [magic, 2, 16_384, 1 << 20, 4096, 4096, 32, 17_842_176];
    let bytes: Vec<u8> = preface.into_iter().flat_map(u64::to_ne_bytes).collect();
    fs::write(&path, bytes).expect("written");
    let file = fs::OpenOptions::new().write(true).open(&path);
    file.expect("there").set_len(preface[7]).expect("grown");
    let said = "lab/ledger: the file has layout version 2, but this gpulimit reads version 3; use \
                one version of gpulimit for all members, or create the group again";
    for verb in ["show", "tree", "ps", "events", "get", "kill"] {
        let error = place.refused(1, &[verb, "lab"]);
        assert!(error.contains(said), "{verb}: {error}");
    }
    let error = place.refused(125, &["run", "--name", "lab", "--", "true"]);
    assert!(error.contains(said), "{error}");
    let mut command = place.gpulimit(&["show", "--mine"]);
    let output = command.env("GPULIMIT_GROUP", "lab").output();
    let error = text(&output.expect("started").stderr);
    assert!(error.contains(said), "{error}");
    let output = text(&place.output(&["doctor"]).stdout);
    assert!(output.contains(said), "{output}");
    // The remedy.
    place.said(&["rm", "lab"]);
    place.said(&["create", "lab"]);
    place.said(&["show", "lab"]);
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.said(&["set", "lab", "max=4G"]);
    for arguments in [
        &["show"][..],
        &["tree"],
        &["ls"],
        &["get", "lab"],
        &["events"],
        &["completions", "bash"],
        &["man"],
    ] {
        let mut child = place
            .gpulimit(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("ended");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}

#[test]
fn show_names_the_group_of_the_smallest_limit() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    place.group("lab/alice", Size::Bytes(8 * GIB));
    place.said(&[
        "set",
        "lab/alice",
        "high=3G",
        "low=1G",
        "on_limit=wait",
        "wait_timeout=5s",
    ]);
    // The group has used no GPU yet.
    let out = place.said(&["show", "lab/alice"]);
    assert!(
        out.contains("EFFECTIVE") && out.contains("4.0 GiB (lab)"),
        "{out}"
    );
    let (member, device) = place.member("lab/alice");
    let (above, other) = place.member("lab");
    member
        .charge(&device, GIB, &Nothing, Insistence::Full)
        .expect("fits");
    above
        .charge(&other, GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let json = place.json(&["show", "lab", "--json"]);
    assert_eq!(json["groups"][0]["name"], "lab");
    let alice = &json["groups"][1];
    assert_eq!(alice["root"], place.root_path().display().to_string());
    assert_eq!(
        alice["options"],
        serde_json::json!({
            "on_limit": "wait", "wait_timeout_ms": 5000, "oom": "none", "count_context": true
        })
    );
    let gpu = &alice["gpus"][0];
    for (key, expected) in [
        ("max", 8 * GIB),
        ("high", 3 * GIB),
        ("low", GIB),
        ("effective_max", 4 * GIB),
        ("usage", GIB),
        ("free", 2 * GIB),
    ] {
        assert_eq!(gpu[key], expected, "{key}: {gpu}");
    }
    assert_eq!(
        (&gpu["limited_by"], &gpu["min"]),
        (&"lab".into(), &Value::Null)
    );
    let out = place.said(&["show"]);
    let lines: Vec<Vec<&str>> = out.lines().map(words).collect();
    assert_eq!(
        lines[0].join(" "),
        "GROUP GPU MAX EFFECTIVE HIGH LOW USAGE PEAK FREE REFUSED PROCESSES OPTIONS"
    );
    assert_eq!(
        lines[2].join(" "),
        "lab/alice GPU-1a2b… 8.0 GiB 4.0 GiB (lab) 3.0 GiB 1.0 GiB 1.0 GiB 1.0 GiB 2.0 GiB 0 1 \
         on_limit=wait wait_timeout=5s"
    );
}

#[test]
fn memory_that_min_keeps_for_others_is_not_free() {
    let place = Place::new();
    place.group("lab", Size::Bytes(10 * GIB));
    place.group("lab/alice", Size::Max);
    place.group("lab/bob", Size::Max);
    place.said(&["set", "lab/alice", "min=4G"]);
    let free = |group: &str| {
        let json = place.json(&["show", group, "--json"]);
        json["groups"][0]["gpus"][0]["free"]
            .as_u64()
            .expect("known")
            / GIB
    };
    let (bob, device) = place.member("lab/bob");
    bob.charge(&device, GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let (alice, hers) = place.member("lab/alice");
    assert_eq!((free("lab"), free("lab/alice"), free("lab/bob")), (9, 9, 5));
    alice
        .charge(&hers, 3 * GIB, &Nothing, Insistence::Full)
        .expect("fits");
    assert_eq!((free("lab"), free("lab/alice"), free("lab/bob")), (6, 6, 5));
}

#[test]
fn groups_removed_during_a_listing_are_no_error() {
    let place = Place::new();
    place.group("stays", Size::Max);
    let root = place.root();
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for _ in 0..300 {
                drop(root.create("goes", &Default::default()).expect("created"));
                // A program that another test starts holds a copy of this process's descriptors for
                // a moment.
                while !root.remove("goes").is_err_and(|error| error.is_missing()) {}
            }
        });
        while !churn.is_finished() {
            let json = place.json(&["tree", "--json"]);
            let groups = json["groups"].as_array().expect("groups");
            assert!(
                groups.iter().any(|group| group["name"] == "stays"),
                "{json}"
            );
        }
    });
}

/// Without a driver the controller cannot know which GPUs exist beside those with rules of their
/// own.
#[test]
fn show_lists_the_rule_for_all_gpus_beside_single_gpus() {
    let place = Place::new();
    let gpu = GPU.to_string();
    place.said(&["create", "lab", "--max", "4G"]);
    place.said(&["set", "lab", "--max", "2G", "--device", &gpu]);
    for verb in ["show", "tree"] {
        let out = place.said(&[verb, "lab"]);
        let lines: Vec<Vec<&str>> = out.lines().skip(1).map(words).collect();
        assert_eq!(lines.len(), 2, "{verb}: {out}");
        assert!(lines[0].contains(&"2.0"), "{verb}: {out}");
        assert!(
            lines[1].contains(&"others") && lines[1].contains(&"4.0"),
            "{verb}: {out}"
        );
    }
}

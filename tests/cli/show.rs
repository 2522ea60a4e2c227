//! `show`

use crate::place::{
    CAPACITY, GIB, GPU, Nothing, OTHER, Place, Running, on, started_by, text, wait_until, words,
};
use crate::terminal::seen;
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use gpulimit_ledger::Category;
use gpulimit_limits::{Key, LimitSet, Selector};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

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
    let member = place.member("lab");
    let device = on(&member);
    device
        .charge(3 * GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let refusal = device
        .charge(2 * GIB, &Nothing, Insistence::Full)
        .expect_err("full");
    device.count_refusal("cuMemAlloc", 2 * GIB, &refusal);
    device.uncharge(GIB);
    device.publish(Category::Linear, GIB);
    device.publish(Category::Managed, GIB / 2);
    device.publish(Category::Driver, GIB / 4);
    device.publish_idle(GIB / 4);

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
        error.contains("new/limits has file format 1, but this gpulimit reads file format 4"),
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
    let said = "lab/ledger: the file has layout version 2, but this gpulimit reads version 6; use \
                one version of gpulimit for all members, or create the group again";
    for verb in ["show", "ps", "events", "get", "kill"] {
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
        &["show", "--tree"],
        &["show", "--names"],
        &["get", "lab"],
        &["events"],
    ] {
        let mut command = place.gpulimit(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running::start(&mut command);
        drop(child.stdout.take());
        let output = child.ended();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}

/// A closed standard output is no reader that has gone: what was asked for is lost.
#[test]
fn a_closed_standard_output_is_a_failure() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let closed = |arguments: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" >&-", "sh"]);
        let output = started_by(shell, &place.gpulimit(arguments)).output();
        let output = output.expect("started");
        (output.status.code(), text(&output.stderr))
    };
    for arguments in [
        &["show"][..],
        &["show", "--tree"],
        &["show", "--names"],
        &["top"],
        &["top", "--json"],
        &["get", "lab"],
    ] {
        let (status, said) = closed(arguments);
        assert_eq!(status, Some(1), "{arguments:?}: {said}");
        assert_eq!(said, "gpulimit: cannot write to stdout: it is closed\n");
    }
    // A change is made, and its message is lost.
    let (status, said) = closed(&["set", "lab", "--max", "4GiB"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.starts_with("gpulimit: done, but cannot write to stdout"),
        "{said}"
    );
    assert_eq!(
        place.json(&["show", "lab", "--json"])["groups"][0]["limits"][0]["max"],
        "4GiB"
    );
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
        "keep_free=2G",
        "on_limit=wait",
        "wait_timeout=5s",
    ]);
    // The group has used no GPU yet.
    let out = place.said(&["show", "lab/alice"]);
    assert!(
        out.contains("EFFECTIVE") && out.contains("4.0 GiB (lab)"),
        "{out}"
    );
    let member = place.member("lab/alice");
    let device = on(&member);
    let above = place.member("lab");
    let other = on(&above);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    other.charge(GIB, &Nothing, Insistence::Full).expect("fits");
    let json = place.json(&["show", "lab", "--json"]);
    assert_eq!(json["groups"][0]["name"], "lab");
    let alice = &json["groups"][1];
    assert_eq!(alice["root"], place.root_path().display().to_string());
    assert_eq!(
        alice["options"],
        serde_json::json!({
            "on_limit": "wait", "wait_timeout_ms": 5000, "pressure_timeout_ms": 2000,
            "oom": "none", "count_context": true, "suspended_max": null
        })
    );
    let gpu = &alice["gpus"][0];
    for (key, expected) in [
        ("max", 8 * GIB),
        ("high", 3 * GIB),
        ("low", GIB),
        ("keep_free", 2 * GIB),
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
        "GROUP GPU MAX EFFECTIVE HIGH LOW KEEP FREE USAGE PEAK FREE REFUSED PROCESSES OPTIONS"
    );
    assert_eq!(
        lines[2].join(" "),
        "lab/alice GPU-1a2b… 8.0 GiB 4.0 GiB (lab) 3.0 GiB 1.0 GiB 2.0 GiB 1.0 GiB 1.0 GiB \
         2.0 GiB 0 1 on_limit=wait wait_timeout=5s"
    );
    // A limit above what the GPU has makes no memory.
    place.said(&["set", "lab", "max=20T"]);
    place.said(&["set", "lab/alice", "max=10T"]);
    let json = place.json(&["show", "lab", "--json"]);
    for (at, charged) in [(0, 2 * GIB), (1, 2 * GIB)] {
        let gpu = &json["groups"][at]["gpus"][0];
        assert_eq!(gpu["free"], CAPACITY - charged, "{gpu}");
    }
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
    let bob = place.member("lab/bob");
    let device = on(&bob);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let alice = place.member("lab/alice");
    let hers = on(&alice);
    assert_eq!((free("lab"), free("lab/alice"), free("lab/bob")), (9, 9, 5));
    hers.charge(3 * GIB, &Nothing, Insistence::Full)
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
                wait_until("the group is gone", || {
                    root.remove("goes").is_err_and(|error| error.is_missing())
                });
            }
        });
        while !churn.is_finished() {
            let json = place.json(&["show", "--tree", "--json"]);
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
    for verb in ["--device=all", "--tree"] {
        let out = place.said(&["show", "lab", verb]);
        let lines: Vec<Vec<&str>> = out.lines().skip(1).map(words).collect();
        assert_eq!(lines.len(), 2, "{verb}: {out}");
        assert!(lines[0].contains(&"2.0"), "{verb}: {out}");
        assert!(
            lines[1].contains(&"others") && lines[1].contains(&"4.0"),
            "{verb}: {out}"
        );
    }
}

/// Returns the first two words of each row: a group and a GPU.
fn rows(table: &str) -> Vec<String> {
    let rows = table.lines().skip(1);
    rows.map(|row| words(row)[..2].join(" ")).collect()
}

#[test]
fn rows_and_json_are_restricted_to_the_named_gpus() {
    let place = Place::new();
    place.group("all", Size::Bytes(GIB));
    place.group("one", Size::Bytes(4 * GIB));
    place.group("both", Size::Bytes(4 * GIB));
    let unlimited = LimitSet::default();
    place.root().create("none", &unlimited).expect("created");
    drop(place.member("none"));
    let member = place.member("one");
    let device = on(&member);
    let both = place.member("both");
    let other = both.device(OTHER, CAPACITY).expect("a device");
    for device in [device, other] {
        device
            .charge(GIB, &Nothing, Insistence::Full)
            .expect("fits");
    }
    let (gpu, other) = (GPU.to_string(), OTHER.to_string());
    for verb in [&["show"][..], &["show", "--tree"]] {
        let shown = |devices: &[&str]| rows(&place.said(&[verb, devices].concat()));
        // A group that has used no GPU has a row for all GPUs.
        assert_eq!(
            shown(&["--device", &gpu]),
            [
                "all all",
                "both GPU-1a2b…",
                "none GPU-1a2b…",
                "one GPU-1a2b…"
            ]
        );
        // The limit for all GPUs applies to a GPU that the group has not used.
        assert_eq!(
            shown(&["--device", &other]),
            ["all all", "both GPU-9c8d…", "one others"]
        );
        assert!(
            place
                .said(&[verb, &["one", "--device", &other]].concat())
                .contains("4.0 GiB")
        );
        let both = ["--device", &gpu, "--device", &other];
        assert_eq!(shown(&both), shown(&[]));
        let json = place.json(&[verb, &["--device", &other, "--json"]].concat());
        let groups = json["groups"].as_array().expect("groups");
        let gpus: Vec<usize> = groups
            .iter()
            .map(|group| group["gpus"].as_array().expect("gpus").len())
            .collect();
        assert_eq!(gpus, [0, 1, 0], "{json}");
        assert_eq!(groups[1]["gpus"][0]["uuid"], other, "{json}");
        // The labels of GPUs that NVML does not list are accepted, too.
        for label in ["GPU-9c8d…", "gpu-9c", "9c8d"] {
            assert_eq!(shown(&["--device", label]), shown(&["--device", &other]));
        }
        let error = place.refused(2, &[verb, &["--device", "GPU-7a"]].concat());
        assert!(error.contains("give the full UUID"), "{error}");
        let output = place.output(&[verb, &["none", "--device", &other]].concat());
        assert!(output.status.success() && output.stdout.is_empty());
        assert!(text(&output.stderr).contains("no group has used such a GPU"));
    }
    let processes = |devices: &[&str]| {
        let json = place.json(&[&["ps", "--json"], devices].concat());
        json["processes"].as_array().expect("processes").len()
    };
    assert_eq!(processes(&[]), 2);
    assert_eq!(processes(&["--device", &other]), 1);
    assert_eq!(processes(&["--device", &gpu, "--device", &other]), 2);
}

#[test]
fn groups_are_sorted_by_their_figures_with_unknown_ones_last() {
    let place = Place::new();
    for name in ["a", "a/x", "b", "c", "none"] {
        place.group(name, Size::Bytes(8 * GIB));
    }
    let mut members = Vec::new();
    for (name, bytes, refusals) in [("a/x", 1, 2), ("b", 4, 0), ("c", 4, 7)] {
        let member = place.member(name);
        let device = on(&member);
        device
            .charge(bytes * GIB, &Nothing, Insistence::Full)
            .expect("fits");
        for _ in 0..refusals {
            let refusal = device
                .charge(9 * GIB, &Nothing, Insistence::Full)
                .expect_err("too much");
            device.count_refusal("cuMemAlloc", 9 * GIB, &refusal);
        }
        if name == "c" {
            device.uncharge(GIB);
        }
        members.push(member);
    }
    for (arguments, expected) in [
        ("--sort name", "a a/x b c none"),
        ("--sort name --reverse", "none c b a/x a"),
        ("--sort usage", "b c a a/x none"),
        ("--sort usage --reverse", "a a/x c b none"),
        ("--sort peak", "b c a a/x none"),
        ("--sort free", "a a/x c b none"),
        ("--sort refused", "c a a/x b none"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let table = place.said(&[&["show"], &arguments[..]].concat());
        let names: Vec<&str> = table.lines().skip(1).map(|row| words(row)[0]).collect();
        assert_eq!(names.join(" "), expected, "{arguments:?}");
        let json = place.json(&[&["show", "--json"], &arguments[..]].concat());
        let groups = json["groups"].as_array().expect("groups");
        let names: Vec<&str> = groups
            .iter()
            .map(|group| group["name"].as_str().expect("a name"))
            .collect();
        assert_eq!(names.join(" "), expected, "{arguments:?}");
    }
    for wrong in [
        &["--reverse"][..],
        &["--sort", "size"],
        &["--mine", "--sort", "name"],
    ] {
        place.refused(2, &[&["show"], wrong].concat());
    }
}

/// The names of these groups are too long for a terminal of 80 columns.
#[test]
fn each_row_is_one_line_of_a_terminal_of_80_columns() {
    let place = Place::new();
    let (project, user) = (
        "a-project-with-a-very-long-name-2026",
        "a-user-with-a-long-name",
    );
    let (outer, inner) = (
        format!("lab/{project}"),
        format!("lab/{project}/{user}-and-a-job"),
    );
    let mut members = Vec::new();
    for name in ["lab", &outer, &inner] {
        place.group(name, Size::Bytes(64 * GIB));
        place.said(&["set", name, "high=60G", "low=1G", "min=0"]);
        let member = place.member(name);
        let device = on(&member);
        let other = member.device(OTHER, CAPACITY).expect("a device");
        for device in [&device, &other] {
            device
                .charge(GIB - 1, &Nothing, Insistence::Full)
                .expect("fits");
        }
        members.push(member);
    }
    for verb in ["show", "show --tree", "ps", "ps --by user"] {
        let arguments: Vec<&str> = verb.split(' ').collect();
        let whole = place.said(&arguments);
        let shown = seen(&place, 80, &[("NO_COLOR", "1")], verb);
        assert_eq!(shown.lines().count(), whole.lines().count(), "{shown}");
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{shown}");
        }
        for head in ["GPU", "GROUP", "USAGE", "TOTAL", "MAX", "FREE"] {
            let column = |text: &str| text.lines().next().unwrap_or_default().contains(head);
            assert_eq!(column(&shown), column(&whole), "{head}: {shown}");
        }
    }
    // Both ends of a path are shown, so that groups can be told apart.
    let shown = seen(&place, 80, &[("NO_COLOR", "1")], "show");
    assert!(
        shown.contains("lab/a-") && shown.contains("-a-job "),
        "{shown}"
    );
}

#[test]
fn more_groups_are_shown_than_there_are_descriptors() {
    let place = Place::new();
    for number in 0..40 {
        let limits = LimitSet::all(Size::Bytes(GIB));
        let created = place.root().create(&format!("g{number}"), &limits);
        created.expect("created");
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 30; exec \"$0\" \"$@\""]);
    let mut command = started_by(shell, &place.gpulimit(&["show", "--json"]));
    let output = command.output().expect("started");
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["groups"].as_array().map(Vec::len), Some(40));
}

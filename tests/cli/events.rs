//! `events`

use crate::place::{GIB, GPU, Nothing, Place};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("a JSON object a line");
    text.lines().map(parse).collect()
}

#[test]
fn events_are_listed_for_all_groups_by_time() {
    let place = Place::new();
    place.group("a", Size::Bytes(2 * GIB));
    place.group("a/b", Size::Max);
    place.group("c", Size::Max);
    assert_eq!(place.said(&["events"]), "");
    place.said(&["set", "c", "max=1G"]);
    let (member, device) = place.member("a/b");
    let refusal = member
        .charge(&device, 3 * GIB, &Nothing, Insistence::Full)
        .expect_err("too much");
    member.count_refusal(&device, "cuMemAlloc", 3 * GIB, &refusal);
    place.said(&["set", "c", "max=2G"]);

    let all = lines(&place.said(&["events", "--json"]));
    let kinds: Vec<&str> = all
        .iter()
        .map(|event| event["event"].as_str().expect("a kind"))
        .collect();
    assert_eq!(kinds, ["limits", "refusal", "limits"]);
    let refused = &all[1];
    // The event belongs to the group that refused, not to the group of the process.
    assert_eq!(refused["group"], "a");
    for (key, expected) in [
        ("number", 0),
        ("bytes", 3 * GIB),
        ("charged", 0),
        ("max", 2 * GIB),
        ("pid", u64::from(std::process::id())),
    ] {
        assert_eq!(refused[key], expected, "{key}: {refused}");
    }
    assert_eq!(refused["gpu"]["uuid"], GPU.to_string());
    let time = refused["time"].as_str().expect("a time");
    assert!(
        time.starts_with("20") && time.ends_with('Z') && time.len() == 24,
        "{time}"
    );

    let of = |group: &str| lines(&place.said(&["events", group, "--json"])).len();
    assert_eq!((of("a"), of("a/b"), of("c")), (1, 0, 2));
    let out = place.said(&["events", "a"]);
    assert!(
        out.contains("refusal  a  GPU GPU-1a2b…: pid")
            && out.contains(" was refused 3.0 GiB, with 0.0 of 2.0 GiB charged"),
        "{out}"
    );
    let error = place.refused(1, &["events", "x"]);
    assert!(error.contains("no group 'x'"), "{error}");
}

#[test]
fn follow_ends_when_the_group_is_removed() {
    let place = Place::new();
    place.group("a", Size::Max);
    place.said(&["set", "a", "max=1G"]);
    let mut child = place
        .gpulimit(&["events", "a", "--follow", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        lines(&line).pop().unwrap_or_default()
    };
    assert_eq!(next()["max"], GIB);
    place.said(&["set", "a", "max=2G"]);
    assert_eq!(next()["max"], 2 * GIB);
    // A group made later is followed, too.
    place.said(&["create", "a/new"]);
    place.said(&["set", "a/new", "max=3G"]);
    let event = next();
    assert_eq!(
        (&event["group"], &event["max"]),
        (&"a/new".into(), &(3 * GIB).into())
    );
    // A group made again starts with new events.
    place.said(&["rm", "a/new"]);
    place.said(&["create", "a/new"]);
    place.said(&["set", "a/new", "max=4G"]);
    assert_eq!(next()["max"], 4 * GIB);
    place.said(&["rm", "--recursive", "a"]);
    assert_eq!(next(), Value::Null);
    let output = child.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no group 'a'"), "{error}");
}

#[test]
fn follow_ends_when_its_reader_is_gone() {
    let place = Place::new();
    place.group("a", Size::Max);
    let mut child = place
        .gpulimit(&["events", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    place.said(&["set", "a", "max=1G"]);
    let output = child.wait_with_output().expect("ended");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

//! `--watch --json` of `show` and `ps`.

use crate::place::{GIB, Nothing, Place, Running, on, text};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};

/// A controller that repeats its output, with the lines that it has not printed yet.
struct Watched {
    child: Running,
    out: BufReader<ChildStdout>,
}

impl Watched {
    fn start(place: &Place, arguments: &str) -> Self {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let mut command = place.gpulimit(&arguments);
        command.stdout(Stdio::piped());
        let mut child = Running::start(command.stderr(Stdio::piped()));
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "it ended after {line:?}");
        line.trim_end().to_owned()
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// Closes the pipe and waits for the end. Returns standard error.
    fn close(self) -> String {
        drop(self.out);
        let output = self.child.ended();
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr)
    }
}

#[test]
fn a_screen_is_the_work_of_top() {
    let place = Place::new();
    place.group("lab", Size::Bytes(GIB));
    for verb in [&["show"][..], &["show", "--tree"], &["ps"]] {
        let error = place.refused(2, &[verb, &["--watch=100ms"]].concat());
        assert!(
            error.contains("add --json") && error.contains("gpulimit top"),
            "{error}"
        );
    }
}

/// The interval is longer than any test, so the end does not come with a further round.
#[test]
fn a_watch_ends_when_its_reader_is_gone() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut watched = Watched::start(&place, "ps --json --watch=1000h");
    watched.json();
    assert_eq!(watched.close(), "");
}

#[test]
fn json_is_one_object_with_a_time_for_each_round() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    let member = place.member("lab");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    for (arguments, key) in [
        ("show --watch=100ms --json", "groups"),
        ("show --mine --watch=100ms --json", "group"),
        ("show --tree --watch=100ms --json", "groups"),
        ("ps --watch=100ms --json", "processes"),
        ("ps --by user --watch=100ms --json", "users"),
    ] {
        let mut watched = Watched::start(&place, arguments);
        let (one, other) = (watched.json(), watched.json());
        for round in [&one, &other] {
            assert_eq!(round["schema"], 1, "{arguments}: {round}");
            assert!(round.get(key).is_some(), "{arguments}: {round}");
        }
        let time = |round: &Value| round["time"].as_str().map(str::to_owned).expect("a time");
        assert!(
            time(&one).ends_with('Z') && time(&one) < time(&other),
            "{one} {other}"
        );
        assert_eq!(watched.close(), "", "{arguments}");
        let once = arguments.replace(" --watch=100ms", "");
        let once = place.json(&once.split(' ').collect::<Vec<_>>());
        assert!(once.get("time").is_none(), "{once}");
    }
}

#[test]
fn a_group_that_disappears_and_comes_back_is_reported() {
    let place = Place::new();
    place.group("lab", Size::Bytes(GIB));
    let mut lines = Watched::start(&place, "show lab --watch=100ms --json");
    assert_eq!(lines.json()["groups"][0]["name"], "lab");
    place.said(&["rm", "lab"]);
    let error = loop {
        let round = lines.json();
        if let Some(error) = round["error"].as_str() {
            assert!(round["time"].is_string() && round["schema"] == 1, "{round}");
            break error.to_owned();
        }
    };
    assert!(error.contains("no group 'lab'"), "{error}");
    place.group("lab", Size::Bytes(2 * GIB));
    while lines.json()["groups"].is_null() {}
    assert_eq!(lines.close(), "");
}

#[test]
fn the_first_round_fails_as_without_watch() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for verb in ["show", "ps"] {
        let error = place.refused(1, &[verb, "lba", "--watch"]);
        assert!(error.contains("did you mean lab?"), "{error}");
        for wrong in ["--watch=0", "--watch=99ms", "--watch=soon", "--watch=2000h"] {
            let error = place.refused(2, &[verb, wrong]);
            assert!(error.contains("from 100ms to 1000h"), "{error}");
        }
    }
}

/// The message stays the same in all rounds, until another one takes its place.
#[test]
fn a_message_is_printed_once() {
    let place = Place::new();
    place.group("lab", Size::Max);
    std::fs::write(place.root_path().join("lab/ledger"), "damaged").expect("written");
    let mut watched = Watched::start(&place, "show --watch=100ms --json");
    for _ in 0..4 {
        watched.json();
    }
    drop(watched.out);
    let said = text(&watched.child.ended().stderr);
    assert!(said.contains("lab/ledger"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Each round starts a child process that reads command lines.
#[test]
fn a_watch_keeps_no_ended_child_processes() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let _member = place.member("lab");
    let mut watched = Watched::start(&place, "ps --watch=100ms --json");
    let pid = watched.child.id();
    let mut children = || {
        assert_eq!(watched.json()["processes"][0]["pid"], std::process::id());
        let list = format!("/proc/{pid}/task/{pid}/children");
        let list = std::fs::read_to_string(list).expect("readable");
        list.split_whitespace().count()
    };
    let counts: Vec<usize> = (0..20).map(|_| children()).collect();
    // A child that was killed takes a while to end.
    assert!(counts[10..].iter().any(|count| *count < 5), "{counts:?}");
    watched.close();
}

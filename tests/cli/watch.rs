//! `--watch` of `show`, `tree` and `ps`, on a terminal and elsewhere.

use crate::place::{GIB, Nothing, Place, Running, text};
use crate::terminal::on_terminal;
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, Stdio};

/// A controller that repeats its output, with the lines that it has not printed yet.
struct Watched {
    child: Running,
    out: BufReader<ChildStdout>,
}

impl Watched {
    fn start(place: &Place, arguments: &str) -> Self {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        Self::of(&mut place.gpulimit(&arguments))
    }

    fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
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

    /// Reads until the output contains the text. Returns what was read.
    fn until(&mut self, wanted: &str) -> String {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !String::from_utf8_lossy(&seen).ends_with(wanted) {
            let count = self.out.read(&mut byte).expect("readable");
            assert!(
                count > 0,
                "no {wanted:?} in {:?}",
                String::from_utf8_lossy(&seen)
            );
            seen.extend(byte);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    fn types(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(keys.as_bytes()).expect("written");
    }

    /// Reads to the end. Returns what was read.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        rest
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
fn rounds_follow_each_other_with_a_time_and_a_blank_line() {
    let place = Place::new();
    place.group("lab", Size::Bytes(GIB));
    for verb in ["show", "tree"] {
        place.said(&["set", "lab", "max=1G"]);
        let mut watched = Watched::start(&place, &format!("{verb} --watch=100ms"));
        for round in 0..2 {
            if round > 0 {
                assert_eq!(watched.line(), "");
            }
            let time = watched.line();
            let form: String = time
                .chars()
                .map(|c| if c.is_ascii_digit() { '0' } else { c })
                .collect();
            assert_eq!(form, "0000-00-00 00:00:00");
            assert!(watched.line().starts_with("GROUP  GPU"));
            assert!(watched.line().contains("1.0 GiB"));
        }
        place.said(&["set", "lab", "max=2G"]);
        watched.until("2.0 GiB");
        assert_eq!(watched.close(), "");
    }
}

/// The interval is longer than any test, so the end does not come with a further round.
#[test]
fn a_watch_ends_when_its_reader_is_gone() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for arguments in ["show --watch=1000h", "ps --json --watch=1000h"] {
        let mut watched = Watched::start(&place, arguments);
        watched.line();
        let (mut rest, mut byte) = (Vec::new(), [0]);
        // The last line of a round is the last thing before the wait.
        while !rest.ends_with(b"0\n") && arguments.starts_with("show") {
            assert_eq!(watched.out.read(&mut byte).expect("readable"), 1);
            rest.extend(byte);
        }
        assert_eq!(watched.close(), "", "{arguments}");
    }
}

#[test]
fn json_is_one_object_with_a_time_for_each_round() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = place.member("lab");
    member
        .charge(&device, GIB, &Nothing, Insistence::Full)
        .expect("fits");
    for (arguments, key) in [
        ("show --watch=100ms --json", "groups"),
        ("show --mine --watch=100ms --json", "group"),
        ("tree --watch=100ms --json", "groups"),
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
    let mut table = Watched::start(&place, "tree lab --watch=100ms");
    assert_eq!(lines.json()["groups"][0]["name"], "lab");
    table.until("1.0 GiB");
    place.said(&["rm", "lab"]);
    let error = loop {
        let round = lines.json();
        if let Some(error) = round["error"].as_str() {
            assert!(round["time"].is_string() && round["schema"] == 1, "{round}");
            break error.to_owned();
        }
    };
    assert!(error.contains("no group 'lab'"), "{error}");
    table.until("no group 'lab'");
    place.group("lab", Size::Bytes(2 * GIB));
    while lines.json()["groups"].is_null() {}
    table.until("2.0 GiB");
    assert_eq!(
        (lines.close(), table.close()),
        (String::new(), String::new())
    );
}

#[test]
fn the_first_round_fails_as_without_watch() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for verb in ["show", "tree", "ps"] {
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
    let mut watched = Watched::start(&place, "show --watch=100ms");
    for _ in 0..4 {
        watched.line();
    }
    let said = watched.close();
    assert_eq!(said.matches("gpulimit run --max 4G").count(), 1, "{said}");
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

const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

#[test]
fn a_terminal_is_redrawn_in_place_and_given_back() {
    let place = Place::new();
    for number in 0..20 {
        place.group(&format!("g{number:02}"), Size::Bytes(GIB));
    }
    // The shell survives the terminal's Ctrl-C.
    let script = "stty cols 80 rows 8; trap : INT; PROGRAM show --watch=100ms; \
                  echo status $?; stty -a";
    let mut watched = Watched::of(&mut on_terminal(&place, script));
    // A line of time, the heads, five groups, and the line about the others.
    let seen = watched.until("15 more lines: the terminal is too small");
    assert!(seen.starts_with(ENTER) && seen.contains("g04"), "{seen:?}");
    assert!(!seen.contains("g05"), "{seen:?}");
    place.said(&["set", "g00", "max=3G"]);
    let seen = watched.until("3.0 GiB");
    // Only the rows that change are written: neither the heads nor the other groups.
    assert!(!seen.contains("GROUP") && !seen.contains("g01"), "{seen:?}");
    assert!(!seen.contains("\u{1b}[2J"), "{seen:?}");
    watched.types("\u{3}");
    let rest = watched.rest();
    assert!(rest.contains(LEAVE) && !rest.contains(ENTER), "{rest:?}");
    let after = rest.rsplit(LEAVE).next().expect("text");
    assert!(after.contains("status 130"), "{after}");
    assert!(
        after.contains(" echo ") && !after.contains("-echo "),
        "{after}"
    );
}

#[test]
fn a_terminal_is_given_back_after_sigterm_and_redrawn_when_its_size_changes() {
    let place = Place::new();
    for number in 0..20 {
        place.group(&format!("g{number:02}"), Size::Bytes(GIB));
    }
    let script = "stty cols 80 rows 8; PROGRAM tree --watch=1000h & \
                  read line; stty rows 30; read line; kill $!; wait $!; \
                  echo status $?; stty -a";
    let mut watched = Watched::of(&mut on_terminal(&place, script));
    watched.until("15 more lines: the terminal is too small");
    watched.types("\n");
    let seen = watched.until("g19");
    assert!(!seen.contains("more lines"), "{seen:?}");
    watched.types("\n");
    let rest = watched.rest();
    let after = rest.rsplit(LEAVE).next().expect("text");
    assert!(
        rest.contains(LEAVE) && after.contains("status 143"),
        "{rest:?}"
    );
    assert!(
        after.contains(" echo ") && !after.contains("-echo "),
        "{after}"
    );
}

/// The terminal itself would show the last letter of each line in its last column: `1B`.
#[test]
fn rows_are_cut_to_the_width_of_the_terminal() {
    let place = Place::new();
    place.group("lab", Size::Bytes(GIB));
    let script = "stty cols 14 rows 8; trap : INT; PROGRAM show --watch=100ms; echo end";
    let mut watched = Watched::of(&mut on_terminal(&place, script));
    let seen = watched.until("lab    all  1…");
    watched.types("\u{3}");
    let seen = seen + &watched.rest();
    assert!(seen.contains("end") && !seen.contains("GiB"), "{seen:?}");
}

#[test]
fn a_terminal_without_escape_sequences_gets_round_after_round() {
    let place = Place::new();
    place.group("lab", Size::Bytes(GIB));
    let script = "TERM=dumb; export TERM; trap : INT; PROGRAM show --watch=100ms";
    let mut watched = Watched::of(&mut on_terminal(&place, script));
    let seen = watched.until("1.0 GiB") + &watched.until("GROUP");
    assert!(
        !seen.contains('\u{1b}') && seen.contains("\r\n\r\n"),
        "{seen:?}"
    );
    watched.types("\u{3}");
    assert!(!watched.rest().contains('\u{1b}'));
}

//! `events`

use crate::place::{GIB, GPU, Nothing, Place, Running, on};
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Root};
use gpulimit_ledger::{EventKind, Ledger};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{ChildStdout, Command, Stdio};

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
    let member = place.member("a/b");
    let device = on(&member);
    let refusal = device
        .charge(3 * GIB, &Nothing, Insistence::Full)
        .expect_err("too much");
    device.count_refusal("cuMemAlloc", 3 * GIB, &refusal);
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
    let (child, mut out) = follow(&place, &["a", "--json"]);
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
    let output = child.ended();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no group 'a'"), "{error}");
}

#[test]
fn follow_tries_a_group_again_that_could_not_be_opened() {
    let place = Place::new();
    place.group("a", Size::Max);
    place.said(&["set", "a", "max=1G"]);
    let ledger = place.root().group("a").expect("there").ledger_path();
    let aside = ledger.with_file_name("aside");
    fs::rename(&ledger, &aside).expect("renamed");
    fs::create_dir(&ledger).expect("made");
    let (mut child, mut out) = follow(&place, &["--json"]);
    let next = |pipe: &mut dyn BufRead| {
        let mut line = String::new();
        pipe.read_line(&mut line).expect("a line");
        line
    };
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    let error = next(&mut errors);
    assert!(error.contains("ledger"), "{error}");
    fs::remove_dir(&ledger).expect("removed");
    fs::rename(&aside, &ledger).expect("renamed");
    let event = next(&mut out);
    assert!(event.contains("\"a\""), "{event}");
    drop(child);
    let mut more = String::new();
    errors.read_to_string(&mut more).expect("read");
    assert_eq!(more, "", "reported once");
}

#[test]
fn follow_ends_when_its_reader_is_gone() {
    let place = Place::new();
    place.group("a", Size::Max);
    let (child, out) = follow(&place, &[]);
    drop(out);
    place.said(&["set", "a", "max=1G"]);
    let output = child.ended();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

/// Has a request of 3 GiB refused by a group with a limit of 1 GiB.
fn refuse(place: &Place, group: &str) {
    let member = place.member(group);
    let device = on(&member);
    let refusal = device
        .charge(3 * GIB, &Nothing, Insistence::Full)
        .expect_err("too much");
    device.count_refusal("cuMemCreate", 3 * GIB, &refusal);
}

#[test]
fn events_of_jobs_that_are_gone_are_listed_once() {
    let place = Place::new();
    place.group("a", Size::Max);
    for job in ["run-1-2", "a/job-3-4", "a/job-3-4/run-5-6"] {
        place.group(job, Size::Bytes(GIB));
        refuse(&place, job);
    }
    let of = |arguments: &[&str]| -> Vec<String> {
        let all = lines(&place.said(&[&["events", "--json"], arguments].concat()));
        let seen = |event: &Value| {
            let text = |key: &str| event[key].as_str().expect("a text").to_owned();
            assert_eq!(text("function"), "cuMemCreate", "{event}");
            assert_eq!(
                (&event["number"], &event["bytes"]),
                (&0.into(), &(3 * GIB).into())
            );
            assert_eq!(event["gpu"]["uuid"], GPU.to_string());
            text("group")
        };
        all.iter().map(seen).collect()
    };
    let all = ["run-1-2", "a/job-3-4", "a/job-3-4/run-5-6"];
    assert_eq!(of(&[]), all);
    place.clean();
    assert_eq!(place.said(&["show", "--names"]), "a\n");
    assert_eq!(of(&[]), all);
    assert_eq!(of(&["a"]), all[1..]);
    assert_eq!(of(&["a/job-3-4"]), all[1..]);
    assert_eq!(of(&["a/job-3-4/run-5-6"]), all[2..]);
    assert_eq!(of(&["run-1-2"]), all[..1]);
    let error = place.refused(1, &["events", "run-1-3"]);
    assert!(error.contains("no group 'run-1-3'"), "{error}");
    let trail = place.root_path().join(".trail");
    let mode = fs::metadata(&trail).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    // The trail is in nobody's way, and stays.
    let doctor = place.output(&["doctor"]);
    assert!(
        !String::from_utf8_lossy(&doctor.stdout).contains(".trail"),
        "{doctor:?}"
    );
    place.said(&["rm", "--recursive", "a"]);
    assert_eq!(of(&[]), all[..1]);
}

#[test]
fn a_root_without_jobs_has_no_trail_of_its_own() {
    let place = Place::new();
    place.group("a", Size::Max);
    place.group("a/run-1-2", Size::Max);
    assert!(!place.root_path().join(".trail").exists());
}

#[test]
fn a_draft_of_the_trail_is_cleaned_up() {
    let place = Place::new();
    place.group("run-1-2", Size::Max);
    let [draft, theirs] = ["..trail.12.34.new", "..trail.12.new"].map(|name| {
        let path = place.root_path().join(name);
        fs::write(&path, [0; 8]).expect("written");
        path
    });
    place.said(&["gc"]);
    assert!(!draft.exists() && theirs.exists());
    assert!(place.root_path().join(".trail").exists());
}

#[test]
fn events_are_selected_by_time_user_and_kind() {
    let place = Place::new();
    place.group("a", Size::Bytes(GIB));
    place.said(&["set", "a", "max=1G"]);
    refuse(&place, "a");
    let own = gpulimit_group::effective_user().to_string();
    let count = |arguments: &[&str]| {
        place
            .said(&[&["events", "a"], arguments].concat())
            .lines()
            .count()
    };
    for (arguments, expected) in [
        (&["--since", "1h"][..], 2),
        (&["--since", "2020-01-01"], 2),
        (&["--user", &own], 2),
        (&["--user", "123456"], 0),
        (&["--kind", "refusal"], 1),
        (&["--kind", "oom,limits"], 1),
        (&["--kind", "refusal", "--kind", "limits"], 2),
        (&["--kind", "kill"], 0),
    ] {
        assert_eq!(count(arguments), expected, "{arguments:?}");
    }
    let error = place.refused(2, &["events", "--since", "soon"]);
    assert!(
        error.contains("invalid value 'soon' for '--since <TIME>': expected a time such as"),
        "{error}"
    );
    let error = place.refused(2, &["events", "--kind", "death"]);
    assert!(error.contains("expected one of refusal, wait"), "{error}");
    let error = place.refused(2, &["events", "--user", "no such user"]);
    assert!(error.contains("there is no such user"), "{error}");
}

#[test]
fn a_trail_keeps_more_events_than_a_ring() {
    let place = Place::new();
    place.group("a", Size::Bytes(GIB));
    for _ in 0..300 {
        refuse(&place, "a");
    }
    let all = lines(&place.said(&["events", "--json"]));
    let numbers = all
        .iter()
        .map(|event| event["number"].as_u64().expect("a number"));
    assert!(numbers.eq(0..300));
}

#[test]
fn what_was_asked_and_what_came_is_listed() {
    let place = Place::new();
    place.group("a", Size::Bytes(2 * GIB));
    place.said(&["set", "a", "pressure_timeout=50ms"]);
    let holder = place.member("a");
    let device = on(&holder);
    holder.register(true);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("room");
    let member = place.member("a");
    let device = on(&member);
    device
        .charge(GIB + GIB / 2, &Nothing, Insistence::Full)
        .expect_err("the holder keeps its memory");
    let events = lines(&place.said(&["events", "--kind", "asked,given", "--json"]));
    assert_eq!(events.len(), 2, "{events:?}");
    let [asked, given] = [&events[0], &events[1]];
    assert_eq!(
        (&asked["event"], &given["event"]),
        (&"asked".into(), &"given".into())
    );
    assert_eq!(
        (&asked["processes"], &asked["took_ms"]),
        (&1.into(), &Value::Null)
    );
    assert_eq!(
        (&asked["bytes"], &given["bytes"]),
        (&(GIB / 2).into(), &0.into())
    );
    assert_eq!(given["processes"], Value::Null);
    assert!(given["took_ms"].as_u64() >= Some(50), "{given}");
    let out = place.said(&["events"]);
    assert!(
        out.contains("1 process was asked to give back 512.0 MiB for pid "),
        "{out}"
    );
    assert!(out.contains("0 B came back in "), "{out}");
}

#[test]
fn a_killed_process_is_named_with_the_user_of_gpulimit_kill() {
    let place = Place::new();
    place.group("run-1-2", Size::Max);
    let mut member = place.start_member("run-1-2", None);
    place.said(&["kill", "run-1-2"]);
    member.wait().expect("ended");
    place.said(&["rm", "run-1-2"]);
    let all = lines(&place.said(&["events", "--kind", "kill", "--json"]));
    assert_eq!(all.len(), 1, "{all:?}");
    let event = &all[0];
    assert_eq!(
        (&event["cause"], &event["pid"]),
        (&"command".into(), &member.id().into())
    );
    assert_eq!(event["by"]["command"], "gpulimit");
    assert_eq!(event["by"]["uid"], gpulimit_group::effective_user());
    assert_eq!(event["holders"][0]["bytes"], GIB);
    let out = place.said(&["events"]);
    let said = format!("pid {} (", member.id());
    assert!(
        out.contains(&said) && out.contains("held 1.0 GiB; by pid "),
        "{out}"
    );
}

#[test]
fn a_suspended_process_is_named_with_the_process_that_moved_its_memory() {
    let place = Place::new();
    place.group("a", Size::Max);
    place.group("a/run-1-2", Size::Max);
    let member = place.member("a/run-1-2");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("room");
    let group = Root::at(place.root_path())
        .expect("a root")
        .group("a/run-1-2")
        .expect("a group");
    let ledger = Ledger::open(&group.ledger_path()).expect("opened");
    let device = ledger.find_device(&GPU);
    let mut process = Identity::of_self();
    (process.pid, process.command) = (4711, [0; 64]);
    process.command[..6].copy_from_slice(b"python");
    let kinds = [EventKind::Suspend, EventKind::Resume, EventKind::Lost];
    for (kind, device) in kinds.into_iter().zip([device, device, None]) {
        group.record_suspension(&ledger, kind, process, device, 12 * GIB);
    }
    let all = lines(&place.said(&["events", "a", "--kind", "suspend,resume,lost", "--json"]));
    let own = u64::from(std::process::id());
    for (event, (kind, charged)) in
        (all.iter()).zip([("suspend", GIB), ("resume", GIB), ("lost", 0)])
    {
        assert_eq!(event["event"], kind);
        for (key, number) in [("pid", 4711), ("bytes", 12 * GIB), ("charged", charged)] {
            assert_eq!(event[key], number, "{key}: {event}");
        }
        assert_eq!(event["by"]["pid"], own, "{event}");
        assert_eq!(
            (&event["max"], &event["cause"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(event["gpu"].is_null(), kind == "lost", "{event}");
    }
    assert_eq!(all.len(), 3);
    let out = place.said(&["events"]);
    for said in [
        format!(": 12.0 GiB of pid 4711 (python) suspended by pid {own} ("),
        format!(": 12.0 GiB of pid 4711 (python) resumed by pid {own} ("),
        format!(
            " pid 4711 (python) is lost: the driver could not bring its 12.0 GiB back; resumed by \
             pid {own} ("
        ),
    ] {
        assert!(out.contains(&said), "{said}\n{out}");
    }
}

#[test]
fn memory_given_back_for_dead_processes_of_jobs_is_listed_after_the_jobs() {
    let place = Place::new();
    let dead = |job: &str| {
        let mut member = place.start_member(job, None);
        member.kill().expect("killed");
        member.wait().expect("ended");
        member.id()
    };
    // `gc` gives back the memory of the first, and another member that of the second.
    place.group("run-1-2", Size::Max);
    let first = dead("run-1-2");
    place.clean();
    assert_eq!(place.said(&["show", "--names"]), "");
    place.group("run-3-4", Size::Bytes(GIB));
    let second = dead("run-3-4");
    let member = place.member("run-3-4");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("the memory is given back");
    drop(member);
    place.clean();
    assert_eq!(place.said(&["show", "--names"]), "");
    let all = lines(&place.said(&["events", "--json"]));
    let seen: Vec<_> = all
        .iter()
        .map(|event| (event["group"].as_str(), event["pid"].as_u64()))
        .collect();
    let wanted = [("run-1-2", first), ("run-3-4", second)];
    assert_eq!(
        seen,
        wanted.map(|(job, pid)| (Some(job), Some(u64::from(pid))))
    );
    for event in &all {
        assert_eq!(
            (&event["event"], &event["bytes"]),
            (&"reap".into(), &GIB.into())
        );
        assert_eq!(event["max"], Value::Null, "unknown: {event}");
    }
}

#[test]
fn a_loop_of_refusals_is_one_line_with_their_number() {
    let place = Place::new();
    place.group("a", Size::Bytes(GIB));
    place.group("a/run-1-2", Size::Max);
    let member = place.member("a/run-1-2");
    let device = on(&member);
    let refuse = |count: u64| {
        for _ in 0..count {
            let refusal = device
                .charge(3 * GIB, &Nothing, Insistence::Full)
                .expect_err("too much");
            device.count_refusal("cuMemAlloc", 3 * GIB, &refusal);
        }
    };
    let listed = || lines(&place.said(&["events", "a", "--kind", "refusal", "--json"]));
    let counted = |all: &[Value]| {
        let count = |event: &Value| event["count"].as_u64().expect("a number");
        all.iter().map(count).sum::<u64>()
    };
    refuse(1);
    assert_eq!(listed()[0]["until"], Value::Null);
    refuse(199);
    let all = listed();
    // The ring of the group has the last of them, too.
    assert_eq!((all.len(), counted(&all)), (1, 200));
    let until = all[0]["until"].as_str().expect("a time");
    assert!(all[0]["time"].as_str() <= Some(until), "{}", all[0]);
    let out = place.said(&["events", "a"]);
    assert!(
        out.contains(&format!(
            "charged; 200 times until {until}; 1.0 GiB left of 1.0 GiB in a; by cuMemAlloc"
        )),
        "{out}"
    );
    // Readers who follow get later events one by one.
    let (_child, mut out) = follow(&place, &["a", "--json"]);
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        lines(&line).pop().expect("an event")
    };
    assert_eq!(next()["count"], 200);
    for number in 200..203 {
        refuse(1);
        let event = next();
        assert_eq!(
            (&event["number"], &event["count"]),
            (&number.into(), &1.into())
        );
    }
    assert_eq!(counted(&listed()), 203);
}

/// Starts a reader who follows events.
fn follow(place: &Place, arguments: &[&str]) -> (Running, BufReader<ChildStdout>) {
    let mut command = place.gpulimit(&[&["events", "--follow"], arguments].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Running::start(&mut command);
    let out = BufReader::new(child.stdout.take().expect("piped"));
    (child, out)
}

/// A burst that is longer than the ring of the group, between two rounds of a reader.
#[test]
fn readers_who_follow_get_each_event_of_a_long_burst_once() {
    let place = Place::new();
    place.group("a", Size::Bytes(GIB));
    let member = place.member("a");
    let device = on(&member);
    let (child, mut out) = follow(&place, &["a", "--json"]);
    let mut until_limits = || {
        let mut refusals = 0;
        loop {
            let mut line = String::new();
            out.read_line(&mut line).expect("a line");
            let event = lines(&line).pop().expect("an event");
            match event["event"].as_str() {
                Some("limits") => return refusals,
                _ => refusals += event["count"].as_u64().expect("a number"),
            }
        }
    };
    let signal = |name: &str| {
        let pid = child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill").success());
    };
    place.said(&["set", "a", "max=2G"]);
    assert_eq!(until_limits(), 0);
    signal("-STOP");
    for _ in 0..300 {
        let refusal = device
            .charge(3 * GIB, &Nothing, Insistence::Full)
            .expect_err("too much");
        device.count_refusal("cuMemAlloc", 3 * GIB, &refusal);
    }
    signal("-CONT");
    place.said(&["set", "a", "max=1G"]);
    assert_eq!(until_limits(), 300);
    // The ring may give its events one round later.
    place.said(&["set", "a", "max=2G"]);
    assert_eq!(until_limits(), 0);
}

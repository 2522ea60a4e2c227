//! `ps`

use crate::place::{
    CAPACITY, GIB, GPU, Nothing, OTHER, Place, may_unshare, on, set_environment, text, wait_until,
    words,
};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member};
use gpulimit_ledger::NoWitness;
use serde_json::Value;
use std::process::Command;

#[test]
fn a_member_without_memory_is_listed() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let _member = Member::join(&place.root(), "lab").expect("joined");
    let process = &place.json(&["ps", "--json"])["processes"][0];
    assert_eq!(process["pid"], std::process::id());
    assert!(
        process["gpu"].is_null() && process["total"].is_null(),
        "{process}"
    );
    assert_eq!(place.json(&["show", "--json"])["groups"][0]["processes"], 1);
}

#[test]
fn ps_shows_a_process_once_with_its_own_group() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("lab/alice", Size::Max);
    place.group("lab/alice/job7", Size::Max);
    place.group("other", Size::Max);
    let member = place.member("lab/alice/job7");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    for arguments in [
        &["ps", "--json"][..],
        &["ps", "lab", "--json"],
        &["ps", "lab/alice", "--json"],
        &["ps", "lab/alice/job7", "--json"],
    ] {
        let json = place.json(arguments);
        let processes = json["processes"].as_array().expect("processes");
        assert_eq!(processes.len(), 1, "{json}");
        assert_eq!(processes[0]["group"], "lab/alice/job7");
        assert_eq!(processes[0]["total"], GIB);
        assert_eq!(processes[0]["pid"], std::process::id());
        assert_eq!(processes[0]["own_pid"], std::process::id());
    }
    assert_eq!(
        place.json(&["ps", "other", "--json"])["processes"],
        serde_json::json!([])
    );
    assert!(place.said(&["ps"]).contains("lab/alice/job7"));
}

#[test]
fn ps_sorts_processes_by_group_and_pid() {
    let place = Place::new();
    for name in ["lab", "lab/a", "lab/b"] {
        place.group(name, Size::Max);
    }
    // The first process takes the lowest slot of the ledger of `lab`.
    let _first = Member::join(&place.root(), "lab/b").expect("joined");
    let _second = Member::join(&place.root(), "lab/a").expect("joined");
    let json = place.json(&["ps", "--json"]);
    let processes = json["processes"].as_array().expect("processes");
    let names: Vec<_> = processes.iter().map(|line| &line["group"]).collect();
    assert_eq!(names, ["lab/a", "lab/b"], "{json}");
}

/// The owner of a group can make directories that look like unfinished groups. A listing of all
/// groups waits once, not for each of them, and names only the first ones.
#[test]
fn many_unfinished_groups_cost_one_wait_and_a_few_lines() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let limits = std::fs::read(place.root_path().join("lab/limits")).expect("readable");
    for number in 0..100 {
        let directory = place.root_path().join(format!("lab/sub/g{number}"));
        std::fs::create_dir_all(&directory).expect("made");
        std::fs::write(directory.join("limits"), &limits).expect("written");
    }
    for verb in ["ps", "show --tree", "show", "events"] {
        let errors = place.refused(1, &verb.split(' ').collect::<Vec<_>>());
        let lines: Vec<_> = errors.lines().collect();
        assert_eq!(lines.len(), 9, "{verb}: {errors}");
        let last = "gpulimit: 92 more groups cannot be opened";
        assert_eq!(lines.last(), Some(&last), "{verb}: {errors}");
    }
}

#[test]
fn ps_shows_the_callers_pid_of_a_process_in_a_container() {
    if !may_unshare(&["--pid"]) {
        return;
    }
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let mut inside = place.start_member("lab", Some(command));
    let json = place.json(&["ps", "--json"]);
    let process = &json["processes"][0];
    let pid = process["pid"].as_u64().expect("a number here");
    assert_ne!(pid, process["own_pid"].as_u64().expect("its own"), "{json}");
    let named = std::fs::read_link(format!("/proc/{pid}/exe")).expect("there");
    assert_eq!(named, std::env::current_exe().expect("known"));
    place.said(&["kill", "--signal", "KILL", "lab", &pid.to_string()]);
    inside.wait().expect("ended");
    assert_eq!(place.json(&["show", "--json"])["groups"][0]["processes"], 0);
}

#[test]
fn ps_shows_the_callers_number_of_a_user_in_a_user_namespace() {
    let options = ["--user", "--map-user=1234"];
    if !may_unshare(&options) {
        return;
    }
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut command = Command::new("unshare");
    command.args(options).args(["--fork", "--kill-child"]);
    let mut inside = place.start_member("lab", Some(command));
    let ledger = place.root().group("lab").expect("there").ledger();
    let said = ledger.expect("readable").processes(&NoWitness);
    assert_eq!(said[0].identity.uid, 1234, "it has this number inside");
    let me = gpulimit_group::effective_user();
    let process = &place.json(&["ps", "--json"])["processes"][0];
    assert_eq!(process["uid"], me, "{process}");
    let users = place.json(&["ps", "--by", "user", "--json"]);
    assert_eq!(users["users"][0]["uid"], me, "{users}");
    let pid = process["pid"].to_string();
    place.said(&["kill", "--signal", "KILL", "lab", &pid]);
    inside.wait().expect("ended");
}

/// A request waits in the line of the group that is full, perhaps a group above or below the one
/// that is shown.
#[test]
fn ps_and_show_name_a_request_that_waits() {
    let place = Place::new();
    for (full, waits) in [("lab", "lab/alice"), ("lab/alice", "lab/alice")] {
        place.group("lab", Size::Max);
        place.group("lab/alice", Size::Max);
        place.said(&["set", full, "max=2G", "on_limit=wait", "wait_timeout=24h"]);
        let mut holder = place.start_member(full, None);
        let pid = holder.id();
        let member = place.member(waits);
        let device = on(&member);
        std::thread::scope(|scope| {
            let request =
                scope.spawn(|| device.charge(2 * GIB, &Nothing, Insistence::Full).is_ok());
            for shown in ["lab", "lab/alice"] {
                let own = || {
                    let json = place.json(&["ps", shown, "--json"]);
                    let processes = json["processes"].as_array().expect("processes").clone();
                    let is_own = |line: &Value| line["pid"] == std::process::id();
                    processes.into_iter().find(is_own).expect("listed")
                };
                wait_until("the request waits", || {
                    assert!(!request.is_finished());
                    !own()["waits_for"].is_null()
                });
                let line = own();
                let waits = &line["waits_for"];
                assert_eq!(waits["bytes"], 2 * GIB, "{line}");
                assert_eq!(waits["group"], full, "{line}");
                assert!(waits["waited_ms"].as_u64() < Some(24 * 3_600_000), "{line}");
                assert_eq!(line["gpu"]["uuid"], GPU.to_string(), "{line}");
                assert_eq!(
                    (&line["total"], &line["state"]),
                    (&0.into(), &"running".into())
                );
                let table = place.said(&["ps", shown]);
                let own = table
                    .lines()
                    .find(|line| line.contains("waits for 2.0 GiB, "));
                let own = own.unwrap_or_else(|| panic!("{table}"));
                assert!(
                    own.trim_start()
                        .starts_with(&format!("{} ", std::process::id())),
                    "{table}"
                );
                let seen = in_terminal(&place);
                assert!(seen.contains("waits for 2.0"), "{seen}");
                let json = place.json(&["ps", shown, "--by", "user", "--json"]);
                let line = &json["users"][0];
                assert_eq!(line["waiting"], 1, "{json}");
                assert!(line["waited_ms"].as_u64() < Some(24 * 3_600_000), "{json}");
                let json = place.json(&["ps", shown, "--sort", "waited", "--json"]);
                let first = &json["processes"][0];
                assert_eq!(first["pid"], std::process::id(), "{json}");
                let table = place.said(&["ps", shown, "--by", "user"]);
                assert!(table.contains("WAITING  WAITED"), "{table}");
                let json = place.json(&["show", shown, "--json"]);
                let group = &json["groups"][0];
                assert_eq!(group["gpus"][0]["waiting"], 1, "{json}");
                assert!(place.said(&["show", shown]).contains("WAITING"));
            }
            place.said(&["kill", "--signal", "KILL", full, &pid.to_string()]);
            holder.wait().expect("ended");
            assert!(request.join().expect("no panic"), "granted");
        });
        let process = &place.json(&["ps", "--json"])["processes"][0];
        assert!(process["waits_for"].is_null(), "{process}");
        assert!(!place.said(&["show"]).contains("WAITING"));
        drop(member);
        place.said(&["rm", "--recursive", "lab"]);
    }
}

#[test]
fn the_table_fits_a_terminal_of_80_columns() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let member = place.member("lab");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let piped = place.said(&["ps"]);
    assert!(
        piped.contains("STATE") && piped.contains("MANAGED"),
        "{piped}"
    );
    let seen = in_terminal(&place);
    // The table has a header and one line for the process, without a line break.
    assert_eq!(
        seen.lines().filter(|line| line.contains("GiB")).count(),
        1,
        "{seen}"
    );
}

/// Returns what `ps` prints on a terminal of 80 columns.
fn in_terminal(place: &Place) -> String {
    let program = place.gpulimit(&[]).get_program().to_owned();
    let line = format!("stty cols 80; {} ps", program.to_string_lossy());
    let mut terminal = crate::terminal::script();
    terminal.args(["-qec", &line, "/dev/null"]);
    set_environment(&mut terminal, &place.gpulimit(&[]));
    terminal.env("NO_COLOR", "1");
    let output = terminal.output().expect("script, of util-linux");
    let seen = text(&output.stdout);
    assert!(seen.contains("PID") && seen.contains("TOTAL"), "{output:?}");
    for line in seen.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{seen}");
    }
    seen
}

#[test]
fn rows_are_sorted_by_their_figures() {
    let place = Place::new();
    for name in ["a", "b"] {
        place.group(name, Size::Max);
    }
    let mut child = place.start_member("b", None);
    let member = place.member("a");
    let device = on(&member);
    let other = member.device(OTHER, CAPACITY).expect("a device");
    for (device, bytes) in [(&device, 2 * GIB), (&other, GIB / 2)] {
        device
            .charge(bytes, &Nothing, Insistence::Full)
            .expect("fits");
    }
    let (own, theirs) = (std::process::id(), child.id());
    let of = |arguments: &str| -> Vec<(u64, u64)> {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let json = place.json(&[&["ps", "--json"], &arguments[..]].concat());
        let number = |line: &Value, key: &str| line[key].as_u64().expect("a number");
        let lines = json["processes"].as_array().expect("processes").iter();
        lines
            .map(|line| (number(line, "pid"), number(line, "total")))
            .collect()
    };
    let small = (own.into(), GIB / 2);
    let (large, middle) = ((own.into(), 2 * GIB), (theirs.into(), GIB));
    assert_eq!(of("--sort total"), [large, middle, small]);
    assert_eq!(of("--sort total --reverse"), [small, middle, large]);
    // Rows of one process keep the order of its GPUs.
    assert_eq!(of("--sort group"), [large, small, middle]);
    assert_eq!(of("--sort group --reverse"), [middle, large, small]);
    let by_pid = match own < theirs {
        true => [large, small, middle],
        false => [middle, large, small],
    };
    assert_eq!(of("--sort pid"), by_pid);
    // All have the same user, and none waits.
    assert_eq!(of("--sort user"), [large, small, middle]);
    assert_eq!(of("--sort waited"), [large, small, middle]);
    let table = place.said(&["ps", "--sort", "group", "--reverse"]);
    let first = table.lines().nth(1).expect("a row");
    assert_eq!(words(first)[0], theirs.to_string(), "{table}");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn memory_is_added_up_by_user_and_gpu() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("lab/a", Size::Max);
    let mut child = place.start_member("lab/a", None);
    let member = place.member("lab");
    let device = on(&member);
    let other = member.device(OTHER, CAPACITY).expect("a device");
    for (device, bytes) in [(&device, 2 * GIB), (&other, GIB / 2)] {
        device
            .charge(bytes, &Nothing, Insistence::Full)
            .expect("fits");
    }
    let uid = gpulimit_group::effective_user();
    let users = |arguments: &[&str]| {
        let json = place.json(&[&["ps", "--by", "user", "--json"], arguments].concat());
        json["users"].as_array().expect("users").clone()
    };
    let all = users(&[]);
    let expected = [(GPU, 2, 3 * GIB), (OTHER, 1, GIB / 2)];
    assert_eq!(all.len(), expected.len(), "{all:?}");
    for (line, (gpu, processes, total)) in all.iter().zip(expected) {
        assert_eq!(line["uid"], uid, "{line}");
        assert_eq!(line["gpu"]["uuid"], gpu.to_string(), "{line}");
        assert_eq!(line["processes"], processes, "{line}");
        assert_eq!(line["total"], total, "{line}");
        assert_eq!(line["waiting"], 0, "{line}");
        assert!(line["waited_ms"].is_null(), "{line}");
    }
    let reversed = users(&["--sort", "total", "--reverse"]);
    assert_eq!(reversed[0]["total"], GIB / 2, "{reversed:?}");
    let one = users(&["--device", &OTHER.to_string()]);
    assert_eq!(
        (one.len(), &one[0]["total"]),
        (1, &(GIB / 2).into()),
        "{one:?}"
    );
    let table = place.said(&["ps", "--by", "user"]);
    let heads = table.lines().next().map(words);
    let expected = ["USER", "GPU", "PROCESSES", "TOTAL"];
    assert_eq!(heads.expect("heads"), expected, "{table}");
    assert!(table.contains("GPU-1a2b…          2    3.0 GiB"), "{table}");
    let error = place.refused(2, &["ps", "--by", "user", "--sort", "pid"]);
    assert!(error.contains("sort by user, total or waited"), "{error}");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

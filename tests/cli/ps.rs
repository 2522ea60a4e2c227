//! `ps`

use crate::place::{GIB, Nothing, Place, text};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member};
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
    let (member, device) = place.member("lab/alice/job7");
    member
        .charge(&device, GIB, &Nothing, Insistence::Full)
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
    for verb in ["ps", "tree", "show", "events"] {
        let errors = place.refused(1, &[verb]);
        let lines: Vec<_> = errors.lines().collect();
        assert_eq!(lines.len(), 9, "{verb}: {errors}");
        let last = "gpulimit: 92 more groups cannot be opened";
        assert_eq!(lines.last(), Some(&last), "{verb}: {errors}");
    }
}

#[test]
fn ps_shows_the_callers_pid_of_a_process_in_a_container() {
    let tried = Command::new("unshare")
        .args(["--pid", "--fork", "true"])
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no pid namespaces here");
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
fn the_table_fits_a_terminal_of_80_columns() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let (member, device) = place.member("lab");
    member
        .charge(&device, GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let piped = place.said(&["ps"]);
    assert!(
        piped.contains("STATE") && piped.contains("MANAGED"),
        "{piped}"
    );
    let program = place.gpulimit(&[]).get_program().to_owned();
    let line = format!("stty cols 80; {} ps", program.to_string_lossy());
    let mut terminal = std::process::Command::new("script");
    terminal
        .args(["-qec", &line, "/dev/null"])
        .env("GPULIMIT_ROOT", place.root_path())
        .env("NO_COLOR", "1");
    let output = terminal.output().expect("script, of util-linux");
    let seen = text(&output.stdout);
    assert!(seen.contains("PID") && seen.contains("TOTAL"), "{output:?}");
    for line in seen.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{seen}");
    }
    // The table has a header and one line for the process, without a line break.
    assert_eq!(
        seen.lines().filter(|line| line.contains("GiB")).count(),
        1,
        "{seen}"
    );
}

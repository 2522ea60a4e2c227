//! `ps`

use crate::place::{GIB, Nothing, Place};
use gpulimit::group::{Insistence, Member};
use gpulimit::units::Size;
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
fn a_process_is_shown_once_with_the_group_that_it_is_in() {
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
fn a_process_in_a_container_has_its_number_here() {
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

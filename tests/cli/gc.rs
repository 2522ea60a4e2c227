//! `gc`

use crate::place::{Place, wait_until};
use gpulimit_base::units::Size;
use std::fs;

#[test]
fn gc_removes_and_reports_stale_groups() {
    let place = Place::new();
    assert_eq!(place.said(&["gc"]), "");
    for name in [
        "lab",
        "lab/run-1-2",
        "lab/run-1-2/run-3-4",
        "job-5-6",
        "used",
        "used/run-7-8",
    ] {
        place.group(name, Size::Max);
    }
    let half = place.root_path().join("half");
    fs::create_dir_all(half.join("sub/never")).expect("created");
    fs::write(half.join("sub/never/lock"), "").expect("created");
    let _member = place.member("used/run-7-8");
    let lines = [
        "job-5-6: removed, its job has ended",
        "lab/run-1-2: removed, its job has ended",
        "lab/run-1-2/run-3-4: removed, its job has ended",
        "half: removed, it was not a complete group",
        "half/sub/never: removed, it was not a complete group",
    ];
    // A process that starts meanwhile may be taken for one of a job, whose group stays until the
    // next time.
    let mut out = String::new();
    wait_until("all are removed", || {
        out += &place.said(&["gc"]);
        lines.iter().all(|line| out.contains(line))
    });
    assert_eq!(
        place.said(&["show", "--names"]),
        "lab\nused\nused/run-7-8\n"
    );
    assert_eq!(place.root().leftovers().expect("listed").len(), 0);
    assert_eq!(place.said(&["gc"]), "");
}

#[test]
fn gc_removes_drafts_of_killed_processes() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("used", Size::Max);
    let at = |name: &str| place.root_path().join(name);
    let hint = ".context-GPU-00000000-0000-0000-0000-000000000000";
    let drafts = [
        format!("{hint}.4711"),
        "lab/.ledger.4711.99.new".into(),
        "lab/.limits.4711.0".into(),
    ];
    let others = [
        hint.to_owned(),
        format!("{hint}.4712"),
        "used/.ledger.4711.99.new".into(),
    ];
    for name in drafts.iter().chain(&others) {
        fs::write(at(name), "").expect("written");
    }
    fs::write(at(&others[1]), "notes of a user").expect("written");
    // A group that is being made, or that has a member, is left alone.
    let lock = fs::File::open(at("used/lock")).expect("there");
    lock.lock_shared().expect("locked");
    let out = place.said(&["gc"]);
    for name in &drafts {
        assert!(!at(name).exists(), "{name}");
        assert!(out.contains(&format!("{name}: removed")), "{name}: {out}");
    }
    for name in &others {
        assert!(at(name).exists(), "{name}");
    }
    // Closing the file is not enough: a child that another test starts meanwhile has the descriptor
    // until it calls exec.
    lock.unlock().expect("unlocked");
    place.said(&["gc"]);
    assert!(!at(&others[2]).exists());
    assert_eq!(place.said(&["show", "--names"]), "lab\nused\n");
}

#[test]
fn gc_keeps_limits_without_a_ledger() {
    let place = Place::new();
    place.group("lab", Size::Percent(5000));
    fs::remove_file(place.root_path().join("lab/ledger")).expect("removed");
    assert_eq!(place.said(&["gc"]), "");
    assert_eq!(place.said(&["show", "--names"]), "lab\n");
}

#[test]
fn gc_uncharges_memory_of_dead_processes() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut member = place.start_member("lab", None);
    member.kill().expect("killed");
    member.wait().expect("ended");
    let mut out = String::new();
    // Without a driver to ask, dead processes count for a while.
    wait_until("the memory is given back", || {
        out = place.said(&["gc"]);
        assert!(out.contains("lab: memory of dead processes"), "{out}");
        out.contains("given back")
    });
    assert!(out.contains("given back to the group (1)"), "{out}");
    assert_eq!(place.said(&["gc"]), "");
}

//! `gc`

use crate::place::Place;
use gpulimit::units::Size;
use std::fs;
use std::thread;
use std::time::Duration;

#[test]
fn what_nobody_needs_goes_and_is_said() {
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
    fs::create_dir_all(place.root_path().join("half/sub/never")).expect("created");
    let _member = place.member("used/run-7-8");
    let out = place.said(&["gc"]);
    for line in [
        "job-5-6: removed, its job has ended",
        "lab/run-1-2: removed, its job has ended",
        "lab/run-1-2/run-3-4: removed, its job has ended",
        "half: removed, was no group",
        "half/sub/never: removed, was no group",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert_eq!(place.said(&["ls"]), "lab\nused\nused/run-7-8\n");
    assert_eq!(place.root().leftovers().expect("listed").len(), 0);
    assert_eq!(place.said(&["gc"]), "");
}

#[test]
fn limits_without_a_ledger_are_somebodys_word_and_stay() {
    let place = Place::new();
    place.group("lab", Size::Percent(5000));
    fs::remove_file(place.root_path().join("lab/ledger")).expect("removed");
    assert_eq!(place.said(&["gc"]), "");
    assert_eq!(place.said(&["ls"]), "lab\n");
}

#[test]
fn memory_of_the_dead_is_given_back() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut member = place.start_member("lab", None);
    member.kill().expect("killed");
    member.wait().expect("ended");
    let mut out = String::new();
    // Without a driver to ask, the dead count for a while.
    while !out.contains("given back") {
        out = place.said(&["gc"]);
        assert!(out.contains("lab: memory of dead processes"), "{out}");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(out.contains("given back (1)"), "{out}");
    assert_eq!(place.said(&["gc"]), "");
}

//! `show --names`

use crate::place::Place;
use gpulimit_base::units::Size;
use serde_json::json;

#[test]
fn names_are_in_natural_order() {
    let place = Place::new();
    let names = [
        "lab",
        "lab/run-9",
        "lab/run-9/x",
        "lab/run-10",
        "lab2",
        "lab10",
    ];
    for name in [
        "lab10",
        "lab",
        "lab2",
        "lab/run-10",
        "lab/run-9",
        "lab/run-9/x",
    ] {
        place.group(name, Size::Max);
    }
    let expected = names.join("\n") + "\n";
    assert_eq!(place.said(&["show", "--names"]), expected);
    let (below, of_lab) = (place.said(&["show", "--names", "lab"]), &names[1..4]);
    assert_eq!(below, of_lab.join("\n") + "\n");
    // Both are the members' groups in the order of their names, not of the pids.
    let _later = place.start_member("lab/run-10", None);
    let _sooner = place.start_member("lab/run-9", None);
    let processes = place.json(&["ps", "--json"])["processes"].clone();
    let groups = [0, 1].map(|at| processes[at]["group"].clone());
    assert_eq!(groups, ["lab/run-9", "lab/run-10"]);
}

#[test]
fn ls_prints_one_name_per_line() {
    let place = Place::new();
    assert_eq!(place.said(&["show", "--names"]), "");
    for name in ["lab", "lab/bob", "lab/alice", "lab/alice/run-1-2", "lab.2"] {
        place.group(name, Size::Max);
    }
    let job = place.root().group("lab/alice/run-1-2").expect("there");
    job.record_job().expect("recorded");
    assert_eq!(
        place.said(&["show", "--names"]),
        "lab\nlab/alice\nlab/alice/run-1-2\nlab/bob\nlab.2\n"
    );
    assert_eq!(
        place.said(&["show", "--names", "lab/alice"]),
        "lab/alice/run-1-2\n"
    );
    assert_eq!(place.said(&["show", "--names", "lab.2"]), "");
    let error = place.refused(1, &["show", "--names", "lob"]);
    assert!(error.contains("no group 'lob'"), "{error}");
    let root = place.root_path().display().to_string();
    assert_eq!(
        place.json(&["show", "--names", "lab/alice", "--json"]),
        json!({
            "schema": 1,
            "root": root,
            "groups": [{ "name": "lab/alice/run-1-2", "root": root, "kind": "job" }],
        })
    );
}

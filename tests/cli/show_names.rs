//! `show --names`

use crate::place::Place;
use gpulimit_base::units::Size;
use serde_json::json;

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

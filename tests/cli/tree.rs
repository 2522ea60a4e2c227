//! `tree`

use crate::place::{GIB, Nothing, Place};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;

#[test]
fn tree_shows_groups_below_their_parents() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    place.group("lab/alice", Size::Bytes(4 * GIB));
    place.group("lab/alice/job7", Size::Max);
    place.group("lab/bob", Size::Percent(5000));
    place.group("z", Size::Max);
    let (member, device) = place.member("lab/alice");
    member
        .charge(&device, GIB, &Nothing, Insistence::Full)
        .expect("fits");
    assert_eq!(
        place.said(&["tree"]),
        "\
GROUP       GPU          USAGE      MAX
lab         GPU-1a2b…  1.0 GiB  8.0 GiB
├─ alice    GPU-1a2b…  1.0 GiB  4.0 GiB
│  └─ job7  all              -      max
└─ bob      all              -      50%
z           all              -      max
"
    );
    let out = place.said(&["tree", "lab/alice"]);
    assert!(
        out.contains("\nlab/alice ") && !out.contains("bob"),
        "{out}"
    );
    let json = place.json(&["tree", "--json"]);
    let lab = &json["groups"][0];
    assert_eq!(
        (&lab["name"], &lab["gpus"][0]["usage"]),
        (&"lab".into(), &GIB.into())
    );
    assert_eq!(lab["groups"][0]["groups"][0]["name"], "lab/alice/job7");
    assert_eq!(lab["groups"][1]["name"], "lab/bob");
    assert_eq!(json["groups"][1]["groups"], serde_json::json!([]));
}

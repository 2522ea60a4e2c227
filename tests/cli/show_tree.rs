//! `show --tree`

use crate::place::{GIB, Nothing, Place, on};
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
    let member = place.member("lab/alice");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    assert_eq!(
        place.said(&["show", "--tree"]),
        "\
GROUP       GPU          USAGE      MAX
lab         GPU-1a2b…  1.0 GiB  8.0 GiB
├─ alice    GPU-1a2b…  1.0 GiB  4.0 GiB
│  └─ job7  all              -      max
└─ bob      all              -      50%
z           all              -      max
"
    );
    let out = place.said(&["show", "--tree", "lab/alice"]);
    assert!(
        out.contains("\nlab/alice ") && !out.contains("bob"),
        "{out}"
    );
    let json = place.json(&["show", "--tree", "--json"]);
    let lab = &json["groups"][0];
    assert_eq!(
        (&lab["name"], &lab["gpus"][0]["usage"]),
        (&"lab".into(), &GIB.into())
    );
    assert_eq!(lab["groups"][0]["groups"][0]["name"], "lab/alice/job7");
    assert_eq!(lab["groups"][1]["name"], "lab/bob");
    assert_eq!(json["groups"][1]["groups"], serde_json::json!([]));
}

#[test]
fn groups_are_sorted_below_their_parents() {
    let place = Place::new();
    let mut members = Vec::new();
    for (name, bytes) in [
        ("lab", 0),
        ("lab/a", 1),
        ("lab/b", 3),
        ("lab/c", 1),
        ("z", 6),
    ] {
        place.group(name, Size::Max);
        let member = place.member(name);
        let device = on(&member);
        device
            .charge(bytes * GIB, &Nothing, Insistence::Full)
            .expect("fits");
        members.push(member);
    }
    let names = |arguments: &[&str]| -> Vec<String> {
        let table = place.said(&[&["show", "--tree"], arguments].concat());
        let first = |line: &str| {
            line.split("GPU-")
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        table.lines().skip(1).map(first).collect()
    };
    let of = |arguments| names(arguments).join(" ");
    assert_eq!(of(&["--sort", "usage"]), "z lab ├─ b ├─ a └─ c");
    assert_eq!(
        of(&["--sort", "usage", "--reverse"]),
        "lab ├─ a ├─ c └─ b z",
        "equal figures stay sorted by name"
    );
    let json = place.json(&["show", "--tree", "--sort", "peak", "--json"]);
    assert_eq!(json["groups"][1]["groups"][0]["name"], "lab/b", "{json}");
}

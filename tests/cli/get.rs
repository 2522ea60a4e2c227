//! `get`

use crate::place::{CAPACITY, GIB, GPU, Place};
use gpulimit_base::units::Size;

#[test]
fn output_of_get_is_accepted_by_set() {
    let place = Place::new();
    let uuid = GPU.to_string();
    place.said(&["create", "lab", "max=8G", "oom=kill-largest"]);
    place.said(&["set", "lab", "max=4G", "--device", &uuid]);
    let expected = format!(
        "max=8GiB\nmax=4GiB --device {uuid}\nhigh=max\nlow=0\nmin=0\nkeep_free=0\n\
            on_limit=fail\n\
            wait_timeout=10m\npressure_timeout=2s\noom=kill-largest\ncount_context=yes\n\
            suspended.max=default\n"
    );
    assert_eq!(place.said(&["get", "lab"]), expected);
    place.said(&["create", "copy"]);
    for line in expected.lines() {
        let words = line.split(' ');
        place.said(&["set", "copy"].into_iter().chain(words).collect::<Vec<_>>());
    }
    assert_eq!(place.said(&["get", "copy"]), expected);
}

#[test]
fn get_prints_one_value_per_line() {
    let place = Place::new();
    let uuid = GPU.to_string();
    place.said(&["create", "lab", "max=8G"]);
    assert_eq!(place.said(&["get", "lab", "max"]), "8GiB\n");
    assert_eq!(place.said(&["get", "lab", "low"]), "0\n");
    assert_eq!(place.said(&["get", "lab", "on_limit"]), "fail\n");
    assert_eq!(
        place.said(&["get", "lab", "max", "--device", &uuid]),
        "8GiB\n"
    );
    let error = place.refused(2, &["get", "lab", "mac"]);
    assert!(error.contains("similar value exists: 'max'"), "{error}");
    let error = place.refused(2, &["get", "lab", "max=4G"]);
    assert!(error.contains("[possible values: max, "), "{error}");
    let error = place.refused(1, &["get", "lob", "max"]);
    assert!(error.contains("no group 'lob'"), "{error}");
}

#[test]
fn the_effective_limit_is_the_smallest_on_the_path() {
    let place = Place::new();
    let uuid = GPU.to_string();
    place.said(&["create", "lab", "max=10%"]);
    place.said(&["create", "lab/alice", "max=40G", "high=5G"]);
    let asked = ["get", "lab/alice", "max", "--effective", "--device", &uuid];
    let error = place.refused(1, &asked);
    assert!(error.contains("unknown here"), "{error}");
    let error = place.refused(1, &asked[..4]);
    assert!(error.contains("--device"), "{error}");
    let _member = place.member("lab/alice");
    assert_eq!(
        place.said(&asked),
        format!("{}\n", Size::Bytes(CAPACITY / 10))
    );
    assert_eq!(
        place.said(&asked[..4]),
        format!("{} --device {uuid}\n", Size::Bytes(CAPACITY / 10))
    );
    assert_eq!(
        place.said(&["get", "lab/alice", "high", "--effective", "--device", &uuid]),
        "5GiB\n"
    );
    let json = place.json(&["show", "lab/alice", "--json"]);
    let gpu = &json["groups"][0]["gpus"][0];
    assert_eq!(
        (&gpu["max"], &gpu["effective_max"], &gpu["limited_by"]),
        (&(40 * GIB).into(), &(CAPACITY / 10).into(), &"lab".into())
    );
}

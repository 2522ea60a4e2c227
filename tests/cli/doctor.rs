//! `doctor`

use crate::place::{Place, text};
use gpulimit::units::Size;
use serde_json::Value;
use std::fs;

#[test]
fn doctor_works_without_a_driver() {
    let place = Place::new();
    place.group("lab", Size::Max);
    // Nothing of a driver that this machine may have.
    let empty = place.0.join("libcuda.so.1");
    fs::write(&empty, "").expect("written");
    let output = place
        .gpulimit(&["doctor", "--json"])
        .env("LD_LIBRARY_PATH", &place.0)
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&json["schema"], &json["ok"]),
        (&Value::from(1), &Value::from(false))
    );
    let find = |check: &str| {
        let all = json["findings"].as_array().expect("findings").iter();
        all.filter(|finding| finding["check"] == check)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(find("driver")[0]["level"], "error");
    assert!(
        find("driver")[0]["remedy"]
            .as_str()
            .expect("a remedy")
            .contains("install")
    );
    assert_eq!(find("library")[0]["level"], "ok");
    assert_eq!(find("preload")[0]["level"], "ok");
    assert_eq!(find("root")[0]["level"], "ok");
    assert_eq!(find("environment")[0]["text"], "asks for no limit");
    let out = text(&place.output(&["doctor"]).stdout);
    assert!(out.contains("Limits can"), "{out}");
}

#[test]
fn doctor_names_what_is_wrong() {
    let place = Place::new();
    fs::create_dir(place.root_path()).expect("created");
    fs::create_dir(place.root_path().join("half")).expect("created");
    let output = place
        .gpulimit(&["doctor"])
        .env("GPULIMIT_MAX", "4Q")
        .env("GPULIMIT_LIBRARY", "/nowhere.so")
        .output()
        .expect("started");
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("GPULIMIT_MAX='4Q'"), "{out}");
    assert!(
        out.contains("cannot find libgpulimit.so (tried /nowhere.so)"),
        "{out}"
    );
    assert!(out.contains("half is no complete group"), "{out}");
}

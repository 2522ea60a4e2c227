//! The JSON of the server is that of the verbs.

use super::rig::{GIB, Rig, charge, refuse, steady};
use gpulimit_base::units::Size;
use gpulimit_limits::{Key, Selector};
use gpulimit_support::wait_until;
use serde_json::Value;

/// Returns a machine with groups that have used memory, and a refused request.
fn used() -> (Rig, Vec<impl Sized>) {
    let rig = Rig::with(&[("GPULIMIT_SIM_GPUS", "2")]);
    rig.group("lab", Size::Bytes(8 * GIB));
    rig.group("lab/alice", Size::Max);
    rig.group("other", Size::Percent(5_000));
    let lab = rig.world.root().group("lab").unwrap();
    let high = |limits: &mut gpulimit_limits::LimitSet| {
        limits.set(Selector::All, Key::High, Size::Bytes(6 * GIB));
    };
    lab.write_limits(high).unwrap();
    let alice = rig.member("lab/alice", 3 * GIB);
    let device = rig.on(&alice);
    refuse(&device, 6 * GIB);
    let second = alice.device(rig.gpu(1), 80 * GIB).unwrap();
    charge(&second, GIB);
    let other = rig.member("other", GIB);
    (rig, vec![alice, other])
}

/// Removes what changes by itself: times of the present second.
fn without_periods(mut histories: Value) -> Value {
    for history in histories.as_array_mut().unwrap() {
        let periods = history["periods"].as_array_mut().unwrap();
        assert!(periods.len() > 100);
        periods.retain(|period| !period["max"].is_null() && period["max"] != period["min"]);
    }
    histories
}

#[test]
fn the_state_is_what_show_and_ps_print() {
    let (rig, _members) = used();
    let server = rig.unix(&[]);
    let state = server.place.json("/api/v1/state");
    assert_eq!(state["schema"], 1);
    assert_eq!(state["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(state["public"], false);
    let time: jiff::Timestamp = state["time"].as_str().unwrap().parse().expect("a time");
    assert!(time <= jiff::Timestamp::now());
    assert_eq!(state["groups"], rig.shown(&["show", "--json"])["groups"]);
    assert_eq!(state["groups"].as_array().unwrap().len(), 3);
    assert_eq!(
        steady(&state["processes"]),
        steady(&rig.shown(&["ps", "--json"])["processes"])
    );
    assert_eq!(state["processes"].as_array().unwrap().len(), 3);
    let gpu = &state["gpus"][0];
    assert_eq!(gpu["uuid"], rig.gpu(0).to_string());
    assert_eq!(
        (&gpu["index"], &gpu["groups"]),
        (&0.into(), &(4 * GIB).into())
    );
    assert!(gpu["bus"].is_string() && gpu["name"].is_string(), "{gpu}");
    // No program has memory of the simulated driver.
    assert_eq!((&gpu["used"], &gpu["others"]), (&0.into(), &0.into()));
    assert_eq!(gpu["free"], gpu["total"]);
    let names: Vec<&String> = gpu.as_object().unwrap().keys().collect();
    let all = [
        "uuid",
        "index",
        "name",
        "bus",
        "total",
        "used",
        "free",
        "groups",
        "others",
        "outside",
        "outsiders",
        "outside_unsure",
        "limits",
        "busy",
        "temperature",
        "power",
        "power_limit",
        "clock",
        "memory_clock",
    ];
    assert_eq!(names, all);
}

#[test]
fn the_history_is_what_history_prints() {
    let (rig, _members) = used();
    let server = rig.unix(&[]);
    let shown = rig.shown(&["history", "--json"])["histories"].clone();
    let all = server.place.json("/api/v1/history");
    assert_eq!(all["schema"], 1);
    assert_eq!(
        without_periods(all["histories"].clone()),
        without_periods(shown.clone())
    );
    let names = |path: &str| -> Vec<(String, u64)> {
        let json = server.place.json(path);
        let histories = json["histories"].as_array().unwrap().iter();
        histories
            .map(|one| {
                let index = one["gpu"]["index"].as_u64().unwrap();
                (one["name"].as_str().unwrap().to_owned(), index)
            })
            .collect()
    };
    let owned = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
        all.iter()
            .map(|(name, gpu)| ((*name).to_owned(), *gpu))
            .collect()
    };
    let of_alice = owned(&[("lab/alice", 0), ("lab/alice", 1)]);
    assert_eq!(names("/api/v1/history?group=lab%2Falice"), of_alice);
    let uuid = rig.gpu(1);
    assert_eq!(
        names(&format!("/api/v1/history?gpu={uuid}")),
        owned(&[("lab", 1), ("lab/alice", 1)])
    );
    assert_eq!(
        names("/api/v1/history?gpu=1&group=lab"),
        owned(&[("lab", 1)])
    );
    let root = rig.world.root().path().display();
    assert_eq!(
        names(&format!("/api/v1/history?group=other&root={root}")),
        owned(&[("other", 0)])
    );
    let day = server.place.json("/api/v1/history?group=other&since=1d");
    assert_eq!(day["histories"][0]["period_ms"], 60_000);
    for (status, path) in [
        (404, "/api/v1/history?group=nothing"),
        (404, "/api/v1/history?group=other&root=/elsewhere"),
        (404, "/api/v1/history?group=..%2F..%2Fetc"),
        (404, "/api/v1/history?root=/elsewhere"),
        (400, "/api/v1/history?since=soon"),
        (400, "/api/v1/history?since=-5m"),
        (400, "/api/v1/history?gpu=9"),
        (400, "/api/v1/events?since=tomorrow"),
        (400, "/api/v1/history?gruop=lab"),
        (400, "/api/v1/events?group=lab"),
        (400, "/api/v1/state?group=lab"),
        (404, "/api/v2/state"),
        (404, "/api/v1/state/"),
        (404, "/assets/../Cargo.toml"),
        (404, "/assets/nothing.js"),
    ] {
        let answer = server.place.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.json()["error"].is_string(), "{path}");
    }
    let why = server.place.get("/api/v1/history?gruop=lab").json()["error"].take();
    let why = why.as_str().expect("text");
    let named = why.contains("'gruop'") && why.contains("since, group, root, gpu");
    assert!(named, "{why}");
    // Prometheus may be told to send keys of its own.
    assert_eq!(server.place.get("/metrics?format=prometheus").status, 200);
}

#[test]
fn the_events_are_what_events_prints() {
    let (rig, _members) = used();
    let server = rig.unix(&[]);
    let output = rig.gpulimit(&["events", "--json"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let shown: Vec<Value> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!shown.is_empty());
    let json = server.place.json("/api/v1/events");
    assert_eq!(json["schema"], 1);
    assert_eq!(json["events"].as_array().unwrap(), &shown);
    let json = server.place.json("/api/v1/events?since=1h");
    assert_eq!(json["events"].as_array().unwrap(), &shown);
    wait_until("there are no events since this time", || {
        let now = jiff::Timestamp::now();
        let json = server.place.json(&format!("/api/v1/events?since={now}"));
        json["events"] == serde_json::json!([])
    });
}

//! Clients that follow the server ask again and again.

use super::rig::{GIB, Rig, charge, refuse};
use gpulimit_base::units::Size;
use gpulimit_support::wait_until;
use serde_json::Value;

/// A client that has the present state gets no other, whatever the time is.
#[test]
fn a_known_state_is_not_sent_again() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let member = rig.member("lab", GIB);
    let device = rig.on(&member);
    let server = rig.unix(&[]);
    let ask = |known: &str| {
        let header = format!("If-None-Match: {known}");
        server.place.ask("GET", "/api/v1/state", &[&header])
    };
    // The process's own memory, which is a part of the state, may still grow.
    let mut last = ask("W/\"another\"");
    assert_eq!(last.status, 200);
    wait_until("a later reading has the same state", || {
        let time = |state: &Value| state["time"].clone();
        let known = last.json();
        wait_until("there is a later reading", || {
            time(&server.place.json("/api/v1/state")) != time(&known)
        });
        let same = ask(&last.headers["etag"]);
        if same.status == 200 {
            last = same;
            return false;
        }
        assert_eq!((same.status, &*same.body), (304, ""));
        assert_eq!(same.headers["etag"], last.headers["etag"]);
        true
    });
    let tag = &last.headers["etag"];
    charge(&device, GIB);
    wait_until("the new state is sent", || {
        let answer = ask(tag);
        answer.status == 200 && answer.json()["groups"][0]["gpus"][0]["usage"] == 2 * GIB
    });
}

/// Equal events share an entry, whose last time counts: otherwise a client that asks for what is
/// new would not learn of the later ones.
#[test]
fn an_entry_with_a_new_event_is_sent_again() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let member = rig.member("lab", GIB);
    let device = rig.on(&member);
    refuse(&device, 8 * GIB);
    let server = rig.unix(&[]);
    let first = server.place.json("/api/v1/events")["events"][0].take();
    // A second is the unit of `since`.
    let whole = |time: &Value| time.as_str().expect("a time")[..19].to_owned();
    let mut last = first.clone();
    wait_until("the same request is refused in a later second", || {
        refuse(&device, 8 * GIB);
        last = server.place.json("/api/v1/events")["events"][0].take();
        whole(&last["until"]) > whole(&first["time"])
    });
    let since = whole(&last["until"]);
    let news = server.place.json(&format!("/api/v1/events?since={since}Z"));
    let entry = &news["events"][0];
    assert_eq!(
        (&entry["time"], &entry["number"]),
        (&first["time"], &first["number"])
    );
    assert!(entry["count"].as_u64() > Some(1), "{entry}");
}

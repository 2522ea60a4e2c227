//! `report`

use crate::place::{GIB, GPU, Nothing, Place, text};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns a group `lab` in which this process has used memory for a while, and a group `idle`. One
/// request was refused.
fn used() -> (Place, Member) {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    place.group("idle", Size::Max);
    let (member, device) = place.member("lab");
    let charge = |bytes| member.charge(&device, bytes, &Nothing, Insistence::Full);
    charge(3 * GIB).expect("fits");
    let refusal = charge(2 * GIB).expect_err("full");
    member.count_refusal(&device, "cuMemAlloc", 2 * GIB, &refusal);
    // The clock of the ledger has steps of some milliseconds.
    let start = Instant::now();
    while hours(&place) == 0.0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "no memory over time"
        );
    }
    (place, member)
}

fn uses(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let json = place.json(&[&["report", "--json"], arguments].concat());
    json["uses"].as_array().expect("a list").clone()
}

fn hours(place: &Place) -> f64 {
    uses(place, &["lab"])[0]["gib_hours"]
        .as_f64()
        .expect("a number")
}

fn me() -> u64 {
    fs::metadata("/proc/self").expect("mounted").uid().into()
}

#[test]
fn report_has_a_line_for_each_group_and_gpu() {
    let (place, _member) = used();
    let start = Instant::now();
    let first = hours(&place);
    let all = uses(&place, &[]);
    assert_eq!(all.len(), 1, "the other group has used no GPU: {all:?}");
    let group = &all[0];
    for (key, expected) in [
        ("peak", 3 * GIB),
        ("refusals", 1),
        ("waits", 0),
        ("waited_ms", 0),
    ] {
        assert_eq!(group[key], expected, "{key}: {group}");
    }
    assert_eq!(group["name"], "lab");
    assert_eq!(group["gpu"]["uuid"], GPU.to_string());
    assert!(group["user"].is_null() && group["uid"].is_null(), "{group}");
    // The use grows by 3 GiB times the time, as the memory stays charged.
    std::thread::sleep(Duration::from_millis(300));
    let more = hours(&place) - first;
    let most = 3.0 * (start.elapsed().as_secs_f64() + 0.1) / 3_600.0;
    assert!(
        more >= 3.0 * 0.2 / 3_600.0 && more <= most,
        "{more} of {most}"
    );

    let table = place.said(&["report"]);
    let words: Vec<&str> = table.split_whitespace().collect();
    assert_eq!(
        words.join(" "),
        "GROUP GPU GIB-HOURS PEAK REFUSED WAITED lab GPU-1a2b… 0.0 3.0 GiB 1 0.00 s"
    );
    let output = place.output(&["report", "idle"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(
        text(&output.stderr).contains("no named group has used a GPU"),
        "{output:?}"
    );
}

#[test]
fn report_by_user_has_the_use_of_each_user() {
    let (place, _member) = used();
    let all = uses(&place, &["--by", "user"]);
    assert_eq!(all.len(), 1, "{all:?}");
    let user = &all[0];
    assert_eq!(user["uid"], me());
    assert!(
        user["peak"].is_null() && user["refusals"].is_null(),
        "{user}"
    );
    assert!(user["gib_hours"].as_f64() > Some(0.0), "{user}");
    let name = user["user"].as_str().expect("a name");
    let table = place.said(&["report", "--by", "user"]);
    assert!(
        table.starts_with("GROUP  GPU        USER") && table.contains(name),
        "{table}"
    );
    let csv = place.said(&["report", "--by", "user", "--csv"]);
    let row = format!(",{GPU},{},{name},0.00", me());
    assert!(csv.contains(&row) && csv.lines().count() == 2, "{csv}");
}

/// Returns the lines of the only file in a directory, and the file's name.
fn saved(directory: &Path) -> (String, Vec<String>) {
    let files: Vec<_> = fs::read_dir(directory).expect("made").flatten().collect();
    let lines = |path| {
        fs::read_to_string(path)
            .expect("read")
            .lines()
            .map(String::from)
            .collect()
    };
    // At midnight there are two files.
    let last = files
        .iter()
        .max_by_key(|file| file.file_name())
        .expect("a file");
    let name = last.file_name().into_string().expect("text");
    (name, lines(last.path()))
}

#[test]
fn report_appends_to_the_file_of_the_day() {
    let (place, member) = used();
    let directory = place.0.join("log/reports");
    let save = || place.said(&["report", "--save", directory.to_str().expect("text")]);
    assert_eq!(save(), "");
    let (name, first) = saved(&directory);
    assert_eq!(name.len(), "2026-11-23.csv".len(), "{name}");
    assert_eq!(
        first[0],
        "time,group,root,gpu,uid,user,gib_hours,peak,refusals,waits,waited_ms,made"
    );
    assert_eq!(
        first.len(),
        3,
        "one line of the group, one of the user: {first:?}"
    );
    assert!(first[1].starts_with(&name[..10]), "{first:?}");
    assert!(
        first[1].contains(&format!(",lab,{},", place.root_path().display())),
        "{first:?}"
    );
    assert!(
        first[1].contains(&format!(",{},1,0,0,", 3 * GIB)),
        "{first:?}"
    );
    assert!(first[2].contains(&format!(",{},", me())), "{first:?}");
    // The figures go on, also if the process has ended.
    drop(member);
    save();
    let (again, second) = saved(&directory);
    if again != name {
        eprintln!("skipped: it was midnight");
        return;
    }
    assert_eq!((second.len(), &second[..3]), (5, &first[..]), "heads once");
    let hours = |line: &str| -> f64 {
        let cell = line.split(',').nth(6).expect("a cell");
        cell.parse().expect("a number")
    };
    for (before, after) in [(1, 3), (2, 4)] {
        assert!(
            hours(&second[after]) >= hours(&second[before]),
            "{second:?}"
        );
    }
    let made = |line: &str| line.rsplit(',').next().map(String::from);
    assert_eq!(made(&second[3]), made(&first[1]));
}

#[test]
fn report_names_what_cannot_be_saved() {
    let (place, _member) = used();
    let file = place.0.join("file");
    fs::write(&file, "").expect("written");
    let below = file.join("below");
    let error = place.refused(1, &["report", "--save", below.to_str().expect("text")]);
    assert!(
        error.contains("cannot make") && error.contains("file/below"),
        "{error}"
    );
    place.refused(2, &["report", "--save", "x", "--json"]);
}

//! `history`

use crate::place::{GIB, GPU, Nothing, Place, on, text};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member, MemberDevice};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

fn charge(device: &MemberDevice<'_>, bytes: u64) {
    device
        .charge(bytes, &Nothing, Insistence::Full)
        .expect("fits");
}

/// Returns a group `lab` that has used 3 GiB and uses 1 GiB now. One request was refused.
fn used() -> (Place, Member) {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    let member = place.member("lab");
    let device = on(&member);
    charge(&device, 3 * GIB);
    let refusal = device
        .charge(2 * GIB, &Nothing, Insistence::Full)
        .expect_err("full");
    device.count_refusal("cuMemAlloc", 2 * GIB, &refusal);
    device.uncharge(2 * GIB);
    (place, member)
}

/// Returns the sum of a count of all periods.
fn sum(periods: &[Value], key: &str) -> u64 {
    periods
        .iter()
        .filter_map(|period| period[key].as_u64())
        .sum()
}

#[test]
fn a_device_in_the_place_of_a_time_zone_holds_up_no_command() {
    let (place, _member) = used();
    for zone in ["/dev/zero", ":/dev/zero"] {
        for verb in ["history", "events"] {
            let mut command = place.gpulimit(&[verb, "--since", "08:00"]);
            let output = command.env("TZ", zone).output().expect("started");
            assert!(output.status.success(), "{zone} {verb}: {output:?}");
        }
    }
}

#[test]
fn history_draws_a_curve() {
    let (place, _member) = used();
    let drawn = |locale: &str| {
        let mut command = place.gpulimit(&["history", "lab"]);
        command.env_remove("LC_ALL").env_remove("LC_CTYPE");
        text(
            &command
                .env("LANG", locale)
                .output()
                .expect("started")
                .stdout,
        )
    };
    let curve = drawn("en_US.UTF-8");
    assert!(
        curve.starts_with("lab  GPU GPU-1a2b…  1.0 of 4.0 GiB used, 1 refused\n4.0 GiB ┤───"),
        "{curve}"
    );
    assert!(
        curve.contains('R') && curve.contains('▒') && !curve.contains("unknown"),
        "{curve}"
    );
    assert!(
        curve.lines().all(|line| line.chars().count() <= 80),
        "{curve}"
    );
    for locale in ["C", "POSIX", ""] {
        let curve = drawn(locale);
        assert!(curve.contains("\n4.0 GiB +---"), "{curve}");
        let curve = curve.replace('…', "");
        assert!(curve.is_ascii(), "{curve}");
    }
}

#[test]
fn history_in_json_and_csv_has_all_periods() {
    let (place, _member) = used();
    for (since, period_ms, least) in [
        ("10m", 1_000, 600),
        ("2h", 60_000, 120),
        ("3d", 900_000, 288),
    ] {
        let json = place.json(&["history", "lab", "--since", since, "--json"]);
        let history = &json["histories"][0];
        for (key, expected) in [
            ("usage", GIB),
            ("effective_max", 4 * GIB),
            ("period_ms", period_ms),
        ] {
            assert_eq!(history[key], expected, "{key}: {history}");
        }
        assert_eq!(history["gpu"]["uuid"], GPU.to_string());
        let periods = history["periods"].as_array().expect("periods");
        assert!(
            (least..least + 3).contains(&periods.len()),
            "{}",
            periods.len()
        );
        let most = periods
            .iter()
            .filter_map(|period| period["max"].as_u64())
            .max();
        assert_eq!((most, sum(periods, "refusals")), (Some(3 * GIB), 1));
        let first = &periods[0];
        assert!(
            first["max"].is_null() && first["at_most"].is_null(),
            "{first}"
        );
        assert_eq!(first["at_least"], 0);
        let last = periods.last().expect("a period");
        assert_eq!(
            last["min"].as_u64().map(|min| min <= GIB),
            Some(true),
            "{last}"
        );

        let csv = place.said(&["history", "lab", "--since", since, "--csv"]);
        let mut lines = csv.lines();
        assert_eq!(
            lines.next(),
            Some("time,group,root,gpu,period_ms,max,min,at_most,at_least,refusals,waited_ms,kills")
        );
        let first = lines.next().expect("a period");
        assert!(
            first.contains(&format!(",{GPU},{period_ms},,,,0,0,0,0")),
            "{first}"
        );
        assert!((least - 1..least + 2).contains(&lines.count()));
    }
}

#[test]
fn history_shows_the_groups_and_gpus_that_were_asked_for() {
    let (place, _member) = used();
    place.group("lab/alice", Size::Max);
    place.group("other", Size::Max);
    let other = place.member("other");
    let device = on(&other);
    charge(&device, GIB);
    let names = |arguments: &[&str]| -> Vec<String> {
        let json = place.json(&[&["history", "--json"], arguments].concat());
        let all = json["histories"].as_array().expect("a list").iter();
        all.map(|history| history["name"].as_str().expect("a name").into())
            .collect()
    };
    assert_eq!(names(&[]), ["lab", "other"]);
    assert_eq!(names(&["other"]), ["other"]);
    assert_eq!(names(&["lab", "--device", &GPU.to_string()]), ["lab"]);
    let elsewhere = GPU.to_string().replace("1a2b", "9a9b");
    assert_eq!(names(&["--device", &elsewhere]), [""; 0]);
    let output = place.output(&["history", "lab/alice"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(
        text(&output.stderr).contains("no named group or job"),
        "{output:?}"
    );
}

#[test]
fn history_refuses_times_that_it_does_not_understand() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let error = place.refused(2, &["history", "lab", "--since", "soon"]);
    assert!(
        error.contains("invalid time 'soon': expected a time such as"),
        "{error}"
    );
    let error = place.refused(2, &["history", "lab", "--since", "2999-01-01"]);
    assert!(error.contains("future"), "{error}");
    let error = place.refused(1, &["history", "nolab"]);
    assert!(error.contains("no group 'nolab'"), "{error}");
}

/// A ring of the first GPU's history (`crates/ledger/src/layout.rs`).
pub struct Ring {
    /// Place in the ledger, in bytes.
    at: u64,
    /// Length of a period, in seconds.
    length: u64,
    periods: u64,
}

const FIRST: u64 = (4 + 512 + 8_192 + 32) * 4_096;
pub const SECONDS: Ring = Ring {
    at: FIRST,
    length: 1,
    periods: 600,
};
pub const MINUTES: Ring = Ring {
    at: FIRST + 14_400,
    length: 60,
    periods: 1_440,
};

/// Writes usage that grows by 128 MiB in each period into the last thirty periods of the history.
pub fn write_growth(place: &Place, group: &str, ring: &Ring) {
    let path = place.root_path().join(group).join("ledger");
    let ledger = File::options().write(true).open(path).expect("a ledger");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let last = now.as_secs() / ring.length;
    for ago in 0..30 {
        let period = last - ago;
        let word = ((period << 32) | ((30 - ago) * 32_768)).to_le_bytes();
        let bucket = ring.at + period % ring.periods * 24;
        ledger
            .write_all_at(&[word, word].concat(), bucket)
            .expect("written");
    }
}

/// Writes floors of the first member of a group that rise by 128 MiB a minute, for half an hour.
fn write_floors(place: &Place, group: &str) {
    let path = place.root_path().join(group).join("ledger");
    let ledger = File::options().write(true).open(path).expect("a ledger");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let last = now.as_secs() / 300;
    for ago in 0..6 {
        let (period, units) = (last - ago, (5 - ago) * 5 * 32_768);
        let word = ((period << 32) | units).to_le_bytes();
        let at = (16 << 10) + (2 << 20) + 3_712 + period % 12 * 8;
        ledger.write_all_at(&word, at).expect("written");
    }
}

#[test]
fn usage_that_grows_is_reported() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    let member = place.member("lab");
    let device = on(&member);
    charge(&device, 30 * GIB / 8);
    let verbs = [["history", "lab"], ["show", "lab"]];
    for verb in verbs {
        assert!(!place.said(&verb).contains("leak"));
    }
    write_growth(&place, "lab", &MINUTES);
    let line = "grows 128.0 MiB/min, full in 34 min; may leak: the floor has risen for 20 min";
    for verb in verbs {
        let said = place.said(&verb);
        assert!(said.lines().any(|text| text.ends_with(line)), "{said}");
    }
    write_floors(&place, "lab");
    let of_process = format!("{line}; pid {} (", std::process::id());
    for verb in verbs {
        let said = place.said(&verb);
        assert!(said.contains(&of_process), "{said}");
        assert!(said.contains(") has grown 128.0 MiB/min for "), "{said}");
    }
    let trends = [
        place.json(&["show", "--json"])["groups"][0]["gpus"][0]["trend"].take(),
        place.json(&["history", "--json"])["histories"][0]["trend"].take(),
    ];
    for trend in trends {
        assert_eq!(trend["bytes_per_hour"], GIB / 8 * 60, "{trend}");
        assert_eq!(trend["rising_ms"], 1_200_000, "{trend}");
        assert_eq!(trend["full_in_ms"], 34 * 60_000, "{trend}");
    }
    device.uncharge(3 * GIB);
    assert!(!place.said(&["show"]).contains("leak"), "withdrawn");
    assert!(place.json(&["show", "--json"])["groups"][0]["gpus"][0]["trend"].is_null());
}

//! `set`

use crate::place::{GIB, GPU, Nothing, Place, on, set_environment, text};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use gpulimit_limits::{Key, LimitSet, OnLimit, Selector};
use gpulimit_support::finish;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn set_takes_effect_for_members_at_once() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    let member = place.member("lab");
    let device = on(&member);
    device
        .charge(6 * GIB, &Nothing, Insistence::Full)
        .expect("fits");
    assert_eq!(
        place.said(&["set", "lab", "max=10%"]),
        "lab: max=10% applied to all GPUs\n"
    );
    assert_eq!(device.max(), 8 * GIB);
    let out = place.said(&["set", "lab", "max=4G"]);
    assert!(
        out.contains(
            "applied; usage 6.0 GiB of GPU GPU-1a2b… is 2.0 GiB above the new max \
             4.0 GiB: growth is refused until the usage falls"
        ),
        "{out}"
    );
    assert_eq!(device.max(), 4 * GIB);
    assert_eq!(device.free(), 0);
    let refusal = device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect_err("above the limit");
    assert_eq!(
        (refusal.group, refusal.charged, refusal.max),
        ("lab", 6 * GIB, 4 * GIB)
    );
    device.uncharge(3 * GIB);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits again");

    place.said(&["set", "lab", "max=2G", "--device", &GPU.to_string()]);
    assert_eq!(device.max(), 2 * GIB);
    let out = place.said(&["set", "lab", "max=max"]);
    assert!(out.contains("keeps its own max=2GiB"), "{out}");
    assert_eq!(device.max(), 2 * GIB);
}

#[test]
fn several_keys_are_set_together_or_not_at_all() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    assert_eq!(
        place.said(&["set", "lab", "max=4G", "high=3G", "on_limit=wait"]),
        "lab: max=4GiB applied to all GPUs\n\
         lab: high=3GiB applied to all GPUs\n\
         lab: on_limit=wait applied\n"
    );
    let mut expected = LimitSet::all(Size::Bytes(4 * GIB));
    expected.set(Selector::All, Key::High, Size::Bytes(3 * GIB));
    expected.options.on_limit = OnLimit::Wait;
    let rules = || {
        let limits = place.root().group("lab").expect("there").limits();
        limits.expect("read").rules().expect("rules")
    };
    assert_eq!(rules(), expected);
    // If one of the values is wrong, none is set.
    place.refused(2, &["set", "lab", "max=1G", "oom=nobody"]);
    place.refused(2, &["set", "lab", "max=1G", "max=2G"]);
    place.refused(2, &["set", "lab", "max=1G", "--device", "0"]);
    assert_eq!(rules(), expected);
}

#[test]
fn set_names_a_smaller_limit_of_a_parent() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    place.group("lab/alice", Size::Bytes(3 * GIB));
    place.group("lab/alice/job", Size::Max);
    let out = place.said(&["set", "lab/alice/job", "max=8G"]);
    assert!(
        out.contains(
            "lab/alice/job: max=8GiB is above max=3GiB of group lab/alice: the lower limit applies"
        ),
        "{out}"
    );
    let out = place.said(&["set", "lab/alice/job", "max=max"]);
    assert!(out.contains("max=max is above max=3GiB"), "{out}");
    let out = place.said(&["set", "lab/alice/job", "max=2G"]);
    assert!(!out.contains("above"), "{out}");
    // A percentage can be compared once a GPU of the group is known.
    let out = place.said(&["set", "lab/alice/job", "max=50%"]);
    assert!(!out.contains("above"), "{out}");
    let _member = place.member("lab/alice/job");
    let out = place.said(&[
        "set",
        "lab/alice/job",
        "max=50%",
        "--device",
        &GPU.to_string(),
    ]);
    assert!(out.contains("max=50% is above max=3GiB"), "{out}");
}

#[test]
fn set_records_an_event() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.said(&["set", "lab", "max=4G"]);
    let event: serde_json::Value =
        serde_json::from_str(&place.said(&["events", "--json"])).expect("one line");
    assert_eq!(
        (&event["event"], &event["max"]),
        (&"limits".into(), &(4 * GIB).into())
    );
    assert_eq!(event["command"], "gpulimit", "{event}");
}

#[test]
fn files_suit_their_owner_whatever_the_umask() {
    for (umask, allowed) in [("0777", 0o700), ("0000", 0o755)] {
        let place = Place::new();
        let script = "umask $0; \"$@\" create lab max=1G && \"$@\" set lab max=2G &&
            \"$@\" set lab max=3G && \"$@\" report --save saved &&
            \"$@\" run --name lab -- sh -c umask";
        let mut shell = Command::new("sh");
        let controller = place.gpulimit(&[]);
        set_environment(&mut shell, &controller);
        shell
            .args(["-c", script, umask])
            .arg(controller.get_program());
        let output = finish(shell.current_dir(place.at("")));
        let said = text(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(
            said.ends_with(&format!("{umask}\n")),
            "the command's own: {said}"
        );
        let mut looked = 0;
        let mut folders = vec![place.root_path(), place.at("saved")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("listed") {
                let path = entry.expect("listed").path();
                let about = fs::symlink_metadata(&path).expect("there");
                let (mode, needed) = (
                    about.mode() & 0o777,
                    if about.is_dir() { 0o700 } else { 0o600 },
                );
                assert_eq!(mode & needed, needed, "{}: {mode:o}", path.display());
                assert_eq!(mode & 0o022, 0, "{}: {mode:o}", path.display());
                let is_saved = path.starts_with(place.at("saved"));
                assert!(
                    !is_saved || mode & !allowed == 0,
                    "{}: {mode:o}",
                    path.display()
                );
                looked += 1;
                folders.extend(about.is_dir().then_some(path));
            }
        }
        assert!(looked >= 7, "{looked} files");
    }
}

//! `doctor` in roots in which no group can be made.

use crate::place::{Place, is_root, may_mount, started_by, text};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Returns whether `doctor` finds an error in this root, and what it prints about the root and
/// below.
fn doctor(place: &Place, root: &Path) -> (bool, String) {
    let mut command = place.gpulimit(&["doctor"]);
    let output = command.env("GPULIMIT_ROOT", root).output();
    let out = text(&output.expect("started").stdout);
    let lines: Vec<&str> = out.lines().collect();
    let is_about = |line: &&&str| line.contains(" root  ") || line.contains(" -> ");
    let about: Vec<&str> = lines.iter().filter(is_about).copied().collect();
    let broken = about.iter().any(|line| line.starts_with("error "));
    (broken, about.join("\n"))
}

#[track_caller]
fn is_refused(place: &Place, root: &str, expected: &[&str]) {
    let (broken, out) = doctor(place, Path::new(root));
    assert!(broken, "{root}: {out}");
    for words in expected {
        assert!(out.contains(words), "{root}: no {words:?} in:\n{out}");
    }
}

#[test]
fn doctor_reports_a_root_that_cannot_be_made() {
    let place = Place::new();
    fs::write(place.0.join("file"), "").expect("written");
    for root in ["/nonexistent/a/b", "/proc/gpulimit", "/proc/self/gpulimit"] {
        is_refused(&place, root, &[&format!("cannot make groups in {root}")]);
    }
    let below = place.0.join("file/root").display().to_string();
    is_refused(&place, &below, &["to a directory that can be made"]);
}

#[test]
fn doctor_leaves_a_usable_root_unchanged() {
    let place = Place::new();
    let names = |path: &Path| {
        let entries = fs::read_dir(path).expect("listed").flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    let before = names(&place.0);
    let (broken, out) = doctor(&place, &place.root_path());
    assert!(
        !broken && out.contains("made with the first group"),
        "{out}"
    );
    assert_eq!(names(&place.0), before);
    fs::create_dir(place.root_path()).expect("created");
    let (broken, out) = doctor(&place, &place.root_path());
    assert!(!broken && out.contains("groups: 0"), "{out}");
    assert!(names(&place.root_path()).is_empty());
}

/// Runs `doctor` in a root on a file system of its own, in a mount namespace that ends with it;
/// `script` mounts the file system at `$ROOT`. `None` where mounting is not allowed.
fn mounted(place: &Place, script: &str) -> Option<String> {
    if !may_mount() {
        return None;
    }
    let root = place.root_path();
    fs::create_dir(&root).expect("created");
    let script = format!("{script} || exit 77; \"$0\" \"$@\"; true");
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .env("ROOT", &root);
    let output = started_by(unshare, &place.gpulimit(&["doctor"])).output();
    let output = output.expect("unshare is of util-linux");
    assert!(output.status.success(), "{output:?}");
    Some(text(&output.stdout))
}

#[track_caller]
fn is_refused_on(script: &str, expected: &[&str]) {
    let place = Place::new();
    let Some(out) = mounted(&place, script) else {
        return;
    };
    let about = place.root_path().display().to_string();
    let refused = format!("cannot make groups in {about}");
    for words in [&[&*refused, "Limits cannot be applied"], expected].concat() {
        assert!(out.contains(words), "no {words:?} in:\n{out}");
    }
}

#[test]
fn doctor_reports_a_full_or_read_only_root() {
    is_refused_on(
        "mount -t tmpfs -o mode=0755,ro x $ROOT",
        &[
            "Read-only file system",
            "`ReadWritePaths=-/run/gpulimit`",
            "-> ask root to mount the file system for writing",
        ],
    );
    is_refused_on(
        "mount -t tmpfs -o mode=0755,size=64k x $ROOT && { cat /dev/zero >$ROOT/full; true; } \
            2>/dev/null",
        &["-> no space is left on the file system", "size=512M"],
    );
    is_refused_on(
        "mount -t tmpfs -o mode=0755,nr_inodes=3 x $ROOT && touch $ROOT/a $ROOT/b",
        &["-> no inodes are left on the file system", "nr_inodes=64k"],
    );
}

#[test]
fn doctor_ignores_lost_found_of_a_file_system() {
    let place = Place::new();
    let mount = "mount -t tmpfs -o mode=0755 x $ROOT && mkdir $ROOT/lost+found";
    if let Some(out) = mounted(&place, mount) {
        assert!(!out.contains("lost+found"), "{out}");
    }
    let place = Place::new();
    fs::create_dir_all(place.root_path().join("lost+found")).expect("created");
    let (_, out) = doctor(&place, &place.root_path());
    let path = place.root_path().join("lost+found");
    let line = format!("not made by gpulimit: '{}'", path.display());
    assert!(out.contains(&line), "{out}");
}

#[test]
fn doctor_reports_a_root_that_the_user_cannot_write() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.root_path()).expect("created");
    let as_nobody = || {
        let mut command = place.gpulimit(&["doctor"]);
        let output = command.uid(65_534).output();
        text(&output.expect("started").stdout)
    };
    let out = as_nobody();
    assert!(
        out.contains("has no groups in which to run programs"),
        "{out}"
    );
    place.said(&["create", "lab", "--max", "4G", "--members", "all"]);
    let out = as_nobody();
    assert!(
        out.contains("was not tested: you cannot make groups there"),
        "{out}"
    );
}

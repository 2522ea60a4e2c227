//! `rm`

use crate::place::Place;
use gpulimit_base::units::Size;

#[test]
fn groups_go_where_nothing_is_in_them() {
    let place = Place::new();
    for name in ["a", "a/b", "a/b/c", "d", "e"] {
        place.group(name, Size::Max);
    }
    let error = place.refused(1, &["rm", "a"]);
    assert!(error.contains("rm --recursive a"), "{error}");
    let error = place.refused(1, &["rm", "x", "d", "a"]);
    assert!(
        error.contains("no group 'x'") && error.contains("group 'a' has groups below it"),
        "{error}"
    );
    assert_eq!(place.said(&["ls"]), "a\na/b\na/b/c\ne\n");
    assert_eq!(place.said(&["rm", "--recursive", "a"]), "");
    assert_eq!(place.said(&["ls"]), "e\n");
}

#[test]
fn groups_of_ended_jobs_go_with_the_group_above_them() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for arguments in [&["rm", "lab"][..], &["rm", "--force", "lab"]] {
        if place.said(&["ls"]).is_empty() {
            place.group("lab", Size::Max);
        }
        place.said(&["run", "--group", "lab", "--", "true"]);
        assert_eq!(place.said(&["ls"]), "lab\n", "the job is not shown");
        assert_eq!(place.said(arguments), "");
        assert_eq!(place.said(&["ls"]), "");
    }
}

#[test]
fn a_group_in_use_stays_with_all_below_it() {
    let place = Place::new();
    for name in ["a", "a/b", "a/c"] {
        place.group(name, Size::Max);
    }
    let (member, _) = place.member("a/b");
    for arguments in [&["rm", "a/b"][..], &["rm", "-r", "a"]] {
        let error = place.refused(1, arguments);
        assert!(error.contains("programs run in group"), "{error}");
    }
    assert_eq!(place.said(&["ls"]), "a\na/b\na/c\n");
    drop(member);
    place.said(&["rm", "-r", "a"]);
    assert_eq!(place.said(&["ls"]), "");
}

#[test]
fn force_kills_what_runs_in_it() {
    let place = Place::new();
    for name in ["a", "a/b", "other"] {
        place.group(name, Size::Max);
    }
    let mut inside = place.start_member("a/b", None);
    let mut outside = place.start_member("other", None);
    let error = place.refused(1, &["rm", "--force", "a"]);
    assert!(error.contains("rm --recursive a"), "{error}");
    assert!(
        inside.try_wait().expect("asked").is_none(),
        "killed for nothing"
    );
    place.said(&["rm", "--force", "--recursive", "a"]);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&inside.wait().expect("ended")),
        Some(9)
    );
    assert_eq!(place.said(&["ls"]), "other\n");
    assert!(outside.try_wait().expect("asked").is_none());
    outside.kill().expect("killed");
    outside.wait().expect("ended");
}

#[test]
fn a_group_that_another_program_removes_is_not_said_to_be_in_use() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let lock = place
        .root()
        .group("lab")
        .expect("a group")
        .path()
        .join("lock");
    let mut other = std::process::Command::new("flock")
        .arg(&lock)
        .args(["sh", "-c", "echo held; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("flock, of util-linux");
    let mut held = String::new();
    let mut lines = std::io::BufReader::new(other.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut lines, &mut held).expect("read");
    let error = place.refused(1, &["rm", "lab"]);
    assert!(
        error.contains("another program is making or removing"),
        "{error}"
    );
    assert!(!error.contains("programs run"), "{error}");
    drop(other.stdin.take());
    assert!(other.wait().is_ok());
    place.said(&["rm", "lab"]);
    // Gone, which was asked for.
    let error = place.refused(1, &["rm", "lab"]);
    assert!(error.contains("no group 'lab'"), "{error}");
}

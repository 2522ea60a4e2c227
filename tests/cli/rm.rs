//! `rm`

use crate::place::{Place, Running, wait_until};
use gpulimit_base::units::Size;

#[test]
fn rm_removes_empty_groups() {
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
    assert!(error.contains("group 'd' was removed"), "{error}");
    assert_eq!(place.said(&["show", "--names"]), "a\na/b\na/b/c\ne\n");
    assert_eq!(place.said(&["rm", "--recursive", "a"]), "");
    assert_eq!(place.said(&["show", "--names"]), "e\n");
}

#[test]
fn rm_removes_groups_of_ended_jobs_with_their_parent() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for arguments in [&["rm", "lab"][..], &["rm", "--force", "lab"]] {
        if place.said(&["show", "--names"]).is_empty() {
            place.group("lab", Size::Max);
        }
        place.said(&["run", "--group", "lab", "--", "true"]);
        assert_eq!(
            place.said(&["show", "--names"]),
            "lab\n",
            "the job is not shown"
        );
        assert_eq!(place.said(arguments), "");
        assert_eq!(place.said(&["show", "--names"]), "");
    }
}

#[test]
fn rm_refuses_a_group_with_running_programs() {
    let place = Place::new();
    for name in ["a", "a/b", "a/c"] {
        place.group(name, Size::Max);
    }
    let member = place.member("a/b");
    for arguments in [&["rm", "a/b"][..], &["rm", "-r", "a"]] {
        let error = place.refused(1, arguments);
        assert!(error.contains("programs run in group"), "{error}");
    }
    assert_eq!(place.said(&["show", "--names"]), "a\na/b\na/c\n");
    drop(member);
    // A child that another test starts keeps the member's lock until it runs its program.
    wait_until("a/b is not in use", || {
        place.output(&["rm", "-r", "a"]).status.success()
    });
    assert_eq!(place.said(&["show", "--names"]), "");
}

#[test]
fn rm_force_kills_the_programs_of_the_group() {
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
        "the program ended although nothing was removed"
    );
    place.said(&["rm", "--force", "--recursive", "a"]);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&inside.wait().expect("ended")),
        Some(9)
    );
    assert_eq!(place.said(&["show", "--names"]), "other\n");
    assert!(outside.try_wait().expect("asked").is_none());
}

#[test]
fn rm_reports_a_group_locked_by_another_program() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let lock = place
        .root()
        .group("lab")
        .expect("a group")
        .path()
        .join("lock");
    let mut other = Running::start(
        std::process::Command::new("flock")
            .arg(&lock)
            .args(["sh", "-c", "echo held; read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped()),
    );
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
    // The group is already removed, as requested.
    let error = place.refused(1, &["rm", "lab"]);
    assert!(error.contains("no group 'lab'"), "{error}");
}

#[test]
fn rm_recursive_names_the_directory_that_is_no_group() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("lab/own", Size::Max);
    let below = place
        .root()
        .group("lab")
        .expect("a group")
        .path()
        .join("sub");
    // Directories as deep as groups may be, and one more.
    let incomplete = below.join(["a"; 7].join("/sub/"));
    for strange in [below.join("data"), incomplete.join("sub/a")] {
        std::fs::create_dir_all(&strange).expect("made");
        for options in [&["rm", "-r", "lab"][..], &["rm", "-r", "--force", "lab"]] {
            let error = place.refused(1, options);
            assert!(
                error.contains(&format!("{} was not made by", strange.display())),
                "{error}"
            );
            assert!(!error.contains("--recursive"), "{error}");
        }
        std::fs::remove_dir(&strange).expect("removed");
    }
    // Only incomplete groups are left.
    place.said(&["rm", "-r", "lab"]);
    assert_eq!(place.said(&["show", "--names"]), "");
}

#[test]
fn rm_force_removes_a_group_whose_ledger_was_cut() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let ledger = place.root().group("lab").expect("a group").ledger_path();
    let file = std::fs::File::options()
        .write(true)
        .open(ledger)
        .expect("opened");
    file.set_len(4096).expect("cut");
    place.said(&["rm", "-r", "--force", "lab"]);
    assert_eq!(place.said(&["show", "--names"]), "");
}

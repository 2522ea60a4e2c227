//! `rm`

use crate::place::Place;
use gpulimit::units::Size;

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
        error.contains("no group 'x'") && error.contains("below 'a'"),
        "{error}"
    );
    assert_eq!(place.said(&["ls"]), "a\na/b\na/b/c\ne\n");
    assert_eq!(place.said(&["rm", "--recursive", "a"]), "");
    assert_eq!(place.said(&["ls"]), "e\n");
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

//! `kill`

use crate::place::Place;
use gpulimit::units::Size;
use std::os::unix::process::ExitStatusExt;

#[test]
fn all_processes_of_a_group_and_below_get_the_signal() {
    let place = Place::new();
    for name in ["a", "a/b", "c"] {
        place.group(name, Size::Max);
    }
    let mut one = place.start_member("a", None);
    let mut two = place.start_member("a/b", None);
    let mut other = place.start_member("c", None);
    let out = place.said(&["kill", "a"]);
    assert_eq!(one.wait().expect("ended").signal(), Some(15));
    assert_eq!(two.wait().expect("ended").signal(), Some(15));
    for (child, group) in [(&one, "a"), (&two, "a/b")] {
        let line = format!("{group}: SIGTERM sent to {} (", child.id());
        assert!(out.contains(&line), "{out}");
    }
    assert!(other.try_wait().expect("asked").is_none());
    let events = place.said(&["events", "a"]);
    assert_eq!(events.matches("  kill     a  ").count(), 2, "{events}");

    let error = place.refused(1, &["kill", "c", "1"]);
    assert!(error.contains("no process 1 in group 'c'"), "{error}");
    let error = place.refused(2, &["kill", "--signal", "LOUD", "c"]);
    assert!(error.contains("no signal of this name"), "{error}");
    let pid = other.id().to_string();
    place.said(&["kill", "-s", "SIGKILL", "c", &pid]);
    assert_eq!(other.wait().expect("ended").signal(), Some(9));
    let output = place.output(&["kill", "c"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let error = place.refused(1, &["kill", "x"]);
    assert!(error.contains("no group 'x'"), "{error}");
}

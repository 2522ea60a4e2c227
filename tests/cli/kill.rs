//! `kill`

use crate::place::{CAPACITY, GIB, GPU, Nothing, Place, Running, may_unshare, on};
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Root};
use gpulimit_ledger::{Ledger, Level, charge_unchecked};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

#[test]
fn kill_signals_every_process_of_a_group_and_below() {
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
    assert!(error.contains("unknown signal"), "{error}");
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

const VICTIM: &str = "GPULIMIT_TEST_VICTIM";

/// A member of group `a` that holds 4 GiB, and whose slot names another process.
struct Forger {
    child: Running,
    victim: Running,
}

impl Forger {
    fn start(place: &Place) -> Self {
        let victim = Running::start(Command::new("sleep").arg("600"));
        let test = ["--exact", "kill::forger_process"];
        let mut child = Running::start(
            Command::new(std::env::current_exe().expect("known"))
                .args(test)
                .args(["--ignored", "--nocapture"])
                .env(VICTIM, victim.id().to_string())
                .env("GPULIMIT_ROOT", place.root_path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        let out = child.stdout.as_mut().expect("piped");
        let mut lines = BufReader::new(out).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("forged"))));
        Self { child, victim }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asked").is_none()
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        let lives = self.victim.try_wait().expect("asked").is_none();
        assert!(lives || std::thread::panicking(), "the victim was killed");
    }
}

/// The member started by [`Forger::start`].
#[test]
#[ignore = "a part of other tests"]
fn forger_process() {
    let victim = std::env::var(VICTIM).expect("a number");
    let root = Root::at(std::env::var("GPULIMIT_ROOT").expect("a root")).expect("a root");
    let path = root.group("a").expect("there").ledger_path();
    let ledger = Arc::new(Ledger::open(&path).expect("opened"));
    let identity = Identity {
        pid: victim.parse().expect("a number"),
        start_time: 0,
        ..Identity::of_self()
    };
    let slot = ledger.claim(&identity, "").expect("a slot");
    let level = Level {
        slot: &slot,
        device: ledger.device(GPU, CAPACITY).expect("room"),
        max: u64::MAX,
        protection: None,
        keeps_low: false,
        uncovered: None,
    };
    charge_unchecked(&[level], 4 * GIB);
    println!("forged");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_forged_slot_directs_no_signal_at_its_victim() {
    let place = Place::new();
    place.group("a", Size::Max);
    let mut forger = Forger::start(&place);
    let victim = forger.victim.id().to_string();
    let error = place.refused(1, &["kill", "-s", "KILL", "a", &victim]);
    assert!(
        error.contains(&format!("cannot signal {victim} (")),
        "{error}"
    );
    assert!(error.contains("no process with this pid"), "{error}");
    assert!(forger.is_running());
    // The process that holds the slot is found by the files that it has mapped.
    let out = place.said(&["kill", "-s", "KILL", "a"]);
    let line = format!("SIGKILL sent to {} (in no slot)", forger.child.id());
    let victim = format!("sent to {victim} ");
    assert!(out.contains(&line) && !out.contains(&victim), "{out}");
    assert_eq!(forger.child.wait().expect("ended").signal(), Some(9));
}

#[test]
fn rm_force_ends_the_holder_of_a_forged_slot() {
    let place = Place::new();
    place.group("a", Size::Max);
    let mut forger = Forger::start(&place);
    place.said(&["rm", "--force", "a"]);
    assert_eq!(forger.child.wait().expect("ended").signal(), Some(9));
}

#[test]
fn kill_largest_ignores_forged_slots() {
    let place = Place::new();
    place.group("a", Size::Bytes(5 * GIB));
    place.said(&["set", "a", "oom=kill-largest"]);
    let mut forger = Forger::start(&place);
    let member = place.member("a");
    let device = on(&member);
    let charged = device.charge(2 * GIB, &Nothing, Insistence::Full);
    assert!(charged.is_err());
    assert!(
        forger.is_running(),
        "the process that a forged slot names is killed"
    );
}

#[test]
fn kill_reaches_a_member_with_another_clock() {
    // Time namespaces take root and Linux 5.6.
    if !may_unshare(&["--time", "--boottime", "864000"]) {
        return;
    }
    let place = Place::new();
    place.group("a", Size::Bytes(5 * GIB));
    let start = || {
        let mut shifted = Command::new("unshare");
        shifted.args(["--time", "--boottime", "864000", "--fork", "--kill-child"]);
        place.start_member("a", Some(shifted))
    };
    let mut member = start();
    let out = place.said(&["kill", "-s", "KILL", "a"]);
    assert!(out.contains("a: SIGKILL sent to "), "{out}");
    assert!(!out.contains("in no slot"), "{out}");
    assert!(!member.wait().expect("ended").success());
    place.said(&["set", "a", "oom=kill-largest"]);
    let mut member = start();
    let own = place.member("a");
    let device = on(&own);
    let charged = device.charge(5 * GIB, &Nothing, Insistence::Full);
    assert!(charged.is_ok(), "the largest was killed for it");
    assert!(!member.wait().expect("ended").success());
}

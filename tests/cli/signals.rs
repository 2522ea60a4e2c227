//! Signals that reach `run`.

use crate::place::Place;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A shell script in a group of its own that has said its first line.
pub fn shell(place: &Place, script: &str) -> Child {
    let run = place.gpulimit(&["run", "--max", "4G", "--", "sh", "-c", script]);
    // A shell cannot trap what its starter ignores, and those who start tests in the background, or by nohup, ignore some.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT,QUIT,HUP")
        .arg(run.get_program())
        .args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    says(&mut child, "ready");
    child
}

/// Waits for its next line, which is this one.
fn says(child: &mut Child, wanted: &str) {
    let mut line = String::new();
    let mut out = BufReader::with_capacity(1, child.stdout.as_mut().expect("piped"));
    out.read_line(&mut line).expect("a line");
    assert_eq!(line.trim_end(), wanted);
}

fn kill(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill")
        .args(["-s", signal, &pid])
        .status()
        .expect("started");
    assert!(status.success());
}

#[test]
fn signals_reach_the_command_once() {
    let place = Place::new();
    for signal in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"] {
        let script = format!(
            "n=0; trap 'n=$((n+1)); echo got' {signal}; trap 'exit $n' ALRM; echo ready; while :; do sleep 0.01; done"
        );
        let mut child = shell(&place, &script);
        kill(&child, signal);
        says(&mut child, "got");
        // Time for a second one.
        std::thread::sleep(Duration::from_millis(100));
        // Not passed on, so sent to the command itself.
        let pid = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
            .expect("children");
        let status = Command::new("kill")
            .args(["-s", "ALRM", pid.trim()])
            .status()
            .expect("started");
        assert!(status.success());
        assert_eq!(child.wait().expect("ended").code(), Some(1), "{signal}");
    }
}

#[test]
fn a_signal_that_ends_the_command_ends_us() {
    let place = Place::new();
    for (name, number) in [("TERM", 15), ("USR1", 10), ("HUP", 1)] {
        let mut child = shell(&place, "echo ready; exec sleep 60");
        kill(&child, name);
        assert_eq!(child.wait().expect("ended").signal(), Some(number));
    }
    assert_eq!(place.root().groups().expect("listed"), []);
}

#[test]
fn a_command_that_is_stopped_and_continued_goes_on() {
    let place = Place::new();
    let mut child = shell(&place, "echo ready; kill -STOP $$; exit 5");
    let pid =
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("children");
    let start = Instant::now();
    let stopped = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.contains(") T ")
    };
    while !stopped() {
        assert!(start.elapsed() < Duration::from_secs(120), "never stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(&child, "CONT");
    assert_eq!(child.wait().expect("ended").code(), Some(5));
}

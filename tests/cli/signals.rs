//! Signals that reach `run`.

use crate::place::{Place, Running, started_by, text, wait_until};
use gpulimit_base::units::Size;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// Options of `run` with which the controller stays as the parent of the command.
const STAT: &[&str] = &["--stat"];

/// Starts a shell script in a group of its own, and waits for its first line. `run` becomes the
/// shell, or its parent with `--stat`.
pub fn shell(place: &Place, options: &[&str], script: &str) -> Running {
    let run = [
        &["run", "--max", "4G"],
        options,
        &["--", "sh", "-c", script],
    ]
    .concat();
    // A shell cannot trap signals that its starter ignores, and a starter that runs tests in the
    // background, or by nohup, ignores some.
    let mut starter = Command::new("env");
    starter.arg("--default-signal=INT,QUIT,HUP");
    let mut command = started_by(starter, &place.gpulimit(&run));
    let mut child = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    says(&mut child, "ready");
    child
}

/// Waits for the next line of the child, which must be this one.
fn says(child: &mut Running, wanted: &str) {
    let mut line = String::new();
    let mut out = BufReader::with_capacity(1, child.stdout.as_mut().expect("piped"));
    out.read_line(&mut line).expect("a line");
    assert_eq!(line.trim_end(), wanted);
}

fn kill(child: &Running, signal: &str) {
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
    // The last signal is a real-time signal.
    for signal in [
        "INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "ALRM", "PIPE", "XCPU", "40",
    ] {
        // The traps of signals that arrive together run in the order of their numbers.
        let script = format!(
            "n=0; trap 'n=$((n+1)); echo got' {signal}; trap 'exit $n' 64; echo ready; while :; \
                do sleep 0.01; done"
        );
        let mut child = shell(&place, STAT, &script);
        kill(&child, signal);
        says(&mut child, "got");
        // If the controller forwarded the signal twice, the second one would come before this one.
        kill(&child, "64");
        assert_eq!(child.wait().expect("ended").code(), Some(1), "{signal}");
    }
}

#[test]
fn run_ends_by_the_signal_that_ended_the_command() {
    let place = Place::new();
    for (name, number) in [("TERM", 15), ("USR1", 10), ("HUP", 1)] {
        let mut child = shell(&place, STAT, "echo ready; exec sleep 60");
        kill(&child, name);
        assert_eq!(child.wait().expect("ended").signal(), Some(number));
    }
    assert_eq!(place.root().groups().expect("listed"), []);
}

#[test]
fn a_stopped_command_can_be_continued() {
    let place = Place::new();
    let mut child = shell(&place, STAT, "echo ready; kill -STOP $$; exit 5");
    let pid =
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("children");
    wait_until("the child stops", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.contains(") T ")
    });
    kill(&child, "CONT");
    assert_eq!(child.wait().expect("ended").code(), Some(5));
}

/// Runs the controller in a shell with this limit on the size of files, in blocks of 512 bytes or
/// of 1 KiB.
fn with_file_size(place: &Place, blocks: u32, arguments: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -f {blocks}; exec \"$@\""), "sh"]);
    let mut command = started_by(shell, &place.gpulimit(arguments));
    command.output().expect("started")
}

#[test]
fn a_limit_on_file_sizes_is_reported() {
    let place = Place::new();
    for (blocks, status, arguments) in [
        (0, 1, &["create", "new", "--max", "1G"][..]),
        (0, 125, &["run", "--max", "1G", "--", "true"]),
        // The size suffices for the limits, but not for the ledger.
        (16, 125, &["run", "--max", "1G", "--", "true"]),
    ] {
        let output = with_file_size(&place, blocks, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains("ulimit -f"), "{arguments:?}: {said}");
        let drafts = place.root().leftovers().expect("listed");
        assert_eq!(drafts.len(), 0, "{arguments:?}: {drafts:?}");
    }
}

#[test]
fn a_limit_on_file_sizes_ends_the_command_as_without_run() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let file = place.root_path().join("file");
    let script = format!(
        "ulimit -f 0; exec dd if=/dev/zero of={} count=1",
        file.display()
    );
    for stat in [&[][..], &["--stat"]] {
        let head = ["run", "--group", "lab"];
        let output = place.output(&[&head, stat, &["--", "sh", "-c", &script]].concat());
        let ended = (output.status.signal(), output.status.code());
        assert_eq!(
            ended,
            (Some(libc::SIGXFSZ), None),
            "{}",
            text(&output.stderr)
        );
    }
}

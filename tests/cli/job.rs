//! `run` becomes the command, whose group stays as long as the command lives.

use crate::place::{Place, Running, may_unshare, set_environment, started_by, text, wait_until};
use gpulimit_base::units::Size;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts a script under `run` with these options, and returns its first line.
fn start(place: &Place, options: &[&str], script: &str) -> (Running, String) {
    let arguments = [&["run"], options, &["--", "sh", "-c", script]].concat();
    start_command(place.gpulimit(&arguments))
}

/// Starts a command that waits for a line, and returns its first line.
fn start_command(mut command: Command) -> (Running, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Running::start(command.stderr(Stdio::null()));
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("piped");
    let mut out = BufReader::with_capacity(1, out);
    out.read_line(&mut line).expect("a line");
    (child, line.trim_end().to_owned())
}

fn children(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
}

#[test]
fn run_becomes_the_command() {
    let place = Place::new();
    let (mut child, line) = start(&place, &["--max", "4G"], "echo $$; read line");
    assert_eq!(line, child.id().to_string(), "the same process");
    assert_eq!(children(child.id()), "", "it has no child");
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("ended").code(), Some(1));
    // The same holds in a group that stays.
    let options = ["--name", "lab", "--max", "4G"];
    let (child, line) = start(&place, &options, "echo $$; read line");
    assert_eq!(line, child.id().to_string());
}

#[test]
fn a_group_stays_for_a_command_that_uses_cuda_late() {
    let place = Place::new();
    let own = std::env::current_exe().expect("known");
    let script = format!(
        "echo $GPULIMIT_GROUP; read go; GPULIMIT_TEST_MEMBER=$GPULIMIT_GROUP exec {} \
            --exact place::member_process --ignored < /dev/null > /dev/null",
        own.display()
    );
    for parent in [&["--max", "4G"][..], &["--max", "4G", "--stat"]] {
        let (mut child, group) = start(&place, parent, &script);
        for _ in 0..20 {
            place.said(&["run", "--max", "1G", "--", "true"]);
        }
        place.said(&["gc"]);
        assert_eq!(place.said(&["show", "--names"]), format!("{group}\n"));
        let error = place.refused(1, &["rm", &group]);
        assert!(error.contains("may still use group"), "{error}");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(b"go\n").expect("written");
        assert!(
            child.wait().expect("ended").success(),
            "the command failed: its group is gone"
        );
    }
}

#[test]
fn the_process_that_keeps_a_jobs_group_is_named() {
    let place = Place::new();
    let script = "echo $GPULIMIT_GROUP; exec env -i cat";
    let (mut child, group) = start(&place, &["--max", "4G"], script);
    let pid = child.id();
    let expected = format!("group '{group}' was made for process {pid}, which still runs");
    // Until `env` runs, the environment names the group.
    wait_until("the process is named", || {
        let error = place.refused(1, &["rm", "--recursive", "--force", &group]);
        assert!(error.contains(&format!("process {pid}")), "{error}");
        error.contains(&expected)
    });
    drop(child.stdin.take());
    child.wait().expect("ended");
    place.said(&["rm", &group]);
}

#[test]
fn a_jobs_group_that_is_elsewhere_need_not_have_ended() {
    let error = Place::new().refused(1, &["set", "run-1-2", "max=1G"]);
    let expected = "its job has ended, or is in another root; name another group";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn ended_jobs_are_hidden_until_the_next_cleanup() {
    let place = Place::new();
    place.said(&["create", "lab", "max=8G"]);
    place.said(&["run", "--group", "lab", "--max", "4G", "--", "true"]);
    let jobs = place.root().groups().expect("listed").len() - 1;
    assert_eq!(jobs, 1, "no command has removed it yet");
    assert_eq!(place.said(&["show", "--names"]), "lab\n");
    assert_eq!(place.said(&["show", "--names", "lab"]), "");
    // Suggestions for a misspelt group leave out ended jobs.
    let error = place.refused(1, &["show", "lob"]);
    assert!(error.contains("(known: lab)"), "{error}");
    for arguments in [&["show"][..], &["show", "--tree"]] {
        let out = place.said(arguments);
        assert!(out.contains("lab") && !out.contains("run-"), "{out}");
    }
    wait_until("the group is removed", || {
        place.said(&["gc"]).contains("removed, its job has ended")
    });
    assert_eq!(place.root().groups().expect("listed").len(), 1);
    // Nor are jobs suggested whose memory the driver has yet to free.
    place.group("run-1-2", Size::Max);
    let mut member = place.start_member("run-1-2", None);
    let error = place.refused(1, &["show", "lob"]);
    assert!(error.contains("(known: lab, run-1-2)"), "{error}");
    member.kill().expect("killed");
    member.wait().expect("ended");
    let error = place.refused(1, &["show", "lob"]);
    assert!(error.contains("(known: lab)"), "{error}");
}

#[test]
fn a_command_that_cannot_be_executed_leaves_no_group() {
    let place = Place::new();
    for (command, status) in [("/etc/passwd", 126), ("no-such-command", 127)] {
        place.refused(status, &["run", "--max", "4G", "--", command]);
        assert_eq!(place.root().groups().expect("listed"), []);
    }
}

#[test]
fn nested_runs_have_a_group_each() {
    let place = Place::new();
    place.said(&["create", "lab", "max=8G"]);
    let own = env!("CARGO_BIN_EXE_gpulimit");
    let script = format!("echo $GPULIMIT_GROUP; {own} get $GPULIMIT_GROUP");
    let run = |max| ["run", "--group", "lab", "--max", max, "--"];
    let inner = [&[own][..], &run("2G"), &["sh", "-c", &script]].concat();
    let out = place.said(&[&run("1G")[..], &inner].concat());
    assert!(out.starts_with("lab/run-"), "{out}");
    assert!(out.contains("max=2GiB"), "{out}");
}

/// Returns the signals and descriptors that `cat` and `ls` see when the script starts them, bare or
/// under `run`.
fn surroundings(place: &Place, before: &str, options: Option<&[&str]>) -> String {
    let look = "grep -E '^(SigBlk|SigIgn|SigCgt)' /proc/self/status; for i in 0 1 2 3 4 5 6; do \
        test -e /proc/self/fd/$i && echo $i; done; true";
    let run: Vec<String> = match options {
        None => Vec::new(),
        Some(options) => {
            let run = place.gpulimit(&[&["run", "--max", "4G"], options, &["--"]].concat());
            let words = std::iter::once(run.get_program()).chain(run.get_args());
            words
                .map(|word| word.to_string_lossy().into_owned())
                .collect()
        }
    };
    let script = format!("{before}; exec {} sh -c \"$LOOK\"", run.join(" "));
    let mut command = Command::new("bash");
    set_environment(&mut command, &place.gpulimit(&[]));
    let output = command
        .args(["-c", &script])
        .env("LOOK", look)
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn run_leaves_signals_and_descriptors_unchanged() {
    let place = Place::new();
    for before in [
        "true",
        "trap '' PIPE",
        "trap '' HUP CHLD",
        "trap '' PIPE INT; exec 0<&-",
        "exec 0<&-",
    ] {
        let bare = surroundings(&place, before, None);
        assert!(bare.contains("SigIgn"), "{bare}");
        for options in [&[][..], &["--stat"]] {
            let limited = surroundings(&place, before, Some(options));
            assert_eq!(limited, bare, "{before} {options:?}");
        }
    }
}

#[test]
fn with_stat_the_command_dies_with_its_parent() {
    let place = Place::new();
    let (mut child, line) = start(&place, &["--max", "4G", "--stat"], "echo $$; read line");
    let command = Path::new("/proc").join(&line);
    assert_ne!(line, child.id().to_string(), "gpulimit stays as the parent");
    assert_eq!(children(child.id()).trim(), line);
    let input = child.stdin.take();
    child.kill().expect("killed");
    child.wait().expect("ended");
    let is_over = || {
        let stat = fs::read_to_string(command.join("stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    wait_until("the command dies", is_over);
    drop(input);
}

/// Returns a command in namespaces of its own, which `unshare` makes by these options.
fn in_namespaces(place: &Place, options: &[&str], arguments: &[&str]) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(options).args(["--fork", "--kill-child"]);
    started_by(unshare, &place.gpulimit(arguments))
}

#[test]
fn a_group_lives_as_long_as_its_process_in_any_namespace() {
    const SAME: &[&str] = &[];
    const CLOCK: &[&str] = &["--time", "--boottime", "864000"];
    const NUMBERS: &[&str] = &["--pid", "--mount-proc"];
    // In its own namespace each of these jobs is process 1. Only a caller that sees all processes
    // can tell which of them have ended.
    let sees_all =
        fs::read_link("/proc/self/ns/pid").expect("told") == Path::new("pid:[4026531836]");
    for (job, looker, is_told) in [
        (CLOCK, SAME, true),
        (SAME, CLOCK, true),
        (NUMBERS, SAME, sees_all),
        (&["--pid"], SAME, sees_all),
        (SAME, NUMBERS, false),
        (NUMBERS, NUMBERS, false),
    ] {
        if !may_unshare(job) || !may_unshare(looker) {
            continue;
        }
        let place = Place::new();
        let gc = || {
            let output = in_namespaces(&place, looker, &["gc"]).output();
            let output = output.expect("started");
            assert!(output.status.success(), "{output:?}");
            text(&output.stdout)
        };
        let script = "echo $GPULIMIT_GROUP; read line";
        let run = ["run", "--max", "4G", "--", "sh", "-c", script];
        let [(mut ends, ended), (mut lives, living)] =
            [0; 2].map(|_| start_command(in_namespaces(&place, job, &run)));
        assert_eq!(gc(), "", "{job:?} {looker:?}: both live");
        // The kernel reuses the number of a namespace that is gone, and gc's own namespace may get
        // the job's number: gc would then know that the job has ended.
        let _kept = File::open(format!("/proc/{}/ns/pid_for_children", ends.id()));
        drop(ends.stdin.take());
        ends.wait().expect("ended");
        let mut said = String::new();
        wait_until("gc tells of the end, if it is told", || {
            said += &gc();
            said.is_empty() != is_told
        });
        let expected = format!("{ended}: removed, its job has ended\n");
        assert_eq!(
            said,
            if is_told { &*expected } else { "" },
            "{job:?} {looker:?}"
        );
        let left = place.said(&["show", "--names"]);
        assert!(left.lines().any(|name| name == living), "{left}");
        drop(lives.stdin.take());
        lives.wait().expect("ended");
    }
}

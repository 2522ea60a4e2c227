//! The controller's verbs, exit statuses, errors and signals. No GPU and no driver.
//!
//! The test process itself is the member whose figures are shown.

#[path = "groups/place.rs"]
mod place;

use gpulimit::device::DeviceId;
use gpulimit::group::{Insistence, Member, MemberDevice};
use gpulimit::ledger::Category;
use gpulimit::limits::{Key, LimitSet, Selector};
use gpulimit::units::Size;
use place::{Nothing, Place};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const GPU: DeviceId = DeviceId::gpu([0x1a, 0x2b, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const CAPACITY: u64 = 80 << 30;
const GIB: u64 = 1 << 30;

impl Place {
    /// The controller, in this root and with nothing else in the environment that matters to it.
    fn gpulimit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("GPULIMIT_") || name.starts_with("CUDA_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("GPULIMIT_ROOT", self.root_path())
            .env("GPULIMIT_LIBRARY", library());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.gpulimit(arguments).output().expect("started")
    }

    /// Standard output of a call that ends with status 0.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.said(arguments)).expect("JSON")
    }

    /// The error of a call that ends with this status.
    fn refused(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {output:?}"
        );
        text(&output.stderr)
    }

    /// Makes a group with a limit for all GPUs.
    fn group(&self, name: &str, max: Size) {
        self.root()
            .create(name, &LimitSet::all(max))
            .expect("created");
    }

    fn member(&self, name: &str) -> (Member, MemberDevice) {
        let member = Member::join(&self.root(), name).expect("joined");
        let device = member.device(GPU, CAPACITY).expect("a device");
        (member, device)
    }
}

/// A library that does nothing but look like ours.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libgpulimit.so");
        let draft = path.with_extension(std::process::id().to_string());
        let mut compiler = Command::new("cc")
            .args(["-shared", "-fPIC", "-x", "c", "-o"])
            .arg(&draft)
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a C compiler");
        let source =
            b"const char *gpulimit_hooks(void) { return \"cuMemAlloc_v2 Sized resolved\\n\"; }\n";
        let input = compiler.stdin.take();
        input.expect("piped").write_all(source).expect("written");
        assert!(compiler.wait().expect("ended").success());
        fs::rename(draft, &path).expect("renamed");
        path
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.into()).expect("UTF-8")
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

// Help and mistakes.

#[test]
fn help_of_every_verb_has_examples() {
    let place = Place::new();
    for verb in ["run", "show", "ps", "set", "doctor"] {
        let help = place.said(&[verb, "--help"]);
        assert!(help.contains("Usage:"), "{help}");
        assert!(help.contains("Examples:"), "{help}");
    }
    let help = place.said(&["--help"]);
    assert!(
        help.contains("Examples:") && !help.contains("__probe"),
        "{help}"
    );
    assert!(place.said(&["--version"]).starts_with("gpulimit "));
}

#[test]
fn mistakes_end_with_2() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["fly"][..], "fly"),
        (&["run", "--max", "4Q", "--", "true"], "'4Q' is no size"),
        (&["run", "--max", "", "--", "true"], "empty size"),
        (&["run", "--max", "4G"], "COMMAND"),
        (&["run", "--", "true"], "no limit given"),
        (
            &["run", "--max", "4G", "--name", "a/../b", "--", "true"],
            "no name of a group",
        ),
        (
            &["run", "--max", "4G", "--name", "run-1-2", "--", "true"],
            "choose another",
        ),
        (
            &["run", "--max", "4G", "--device", "0", "--", "true"],
            "doctor",
        ),
        (
            &["run", "--name", "x", "--device", "0", "--", "true"],
            "--max",
        ),
        (&["show", "a b"], "no name of a group"),
        (&["set", "x", "size=4G"], "unknown key 'size'"),
        (&["set", "x", "mac=4G"], "did you mean max?"),
        (&["set", "x", "max=lots"], "'lots' is no size"),
    ] {
        let error = place.refused(2, arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert!(!place.root_path().exists(), "a mistake made something");
}

#[test]
fn an_unknown_group_is_named_with_those_that_exist() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for (status, arguments) in [
        (1, &["show", "lob"][..]),
        (1, &["ps", "lob"]),
        (1, &["set", "lob", "max=4G"]),
        (125, &["run", "--name", "lob", "--", "true"]),
    ] {
        let error = place.refused(status, arguments);
        assert!(error.starts_with("gpulimit: no group 'lob'"), "{error}");
        assert!(
            error.contains("there is lab") && error.contains("gpulimit create lob"),
            "{error}"
        );
    }
}

#[test]
fn an_unsafe_root_is_refused() {
    let place = Place::new();
    symlink("/tmp", place.root_path()).expect("linked");
    let error = place.refused(125, &["run", "--max", "4G", "--", "true"]);
    assert!(
        error.contains("symbolic link") && error.contains("GPULIMIT_ROOT"),
        "{error}"
    );
    let relative = place
        .gpulimit(&["show"])
        .env("GPULIMIT_ROOT", "somewhere")
        .output()
        .expect("started");
    assert_eq!(relative.status.code(), Some(1));
    assert!(text(&relative.stderr).contains("absolute"), "{relative:?}");
}

// run

#[test]
fn run_sets_the_environment_of_the_command() {
    let place = Place::new();
    let script =
        "echo $LD_PRELOAD; echo $GPULIMIT_GROUP; echo $GPULIMIT_ROOT; echo ${GPULIMIT_MAX-unset}";
    let output = place
        .gpulimit(&["run", "--max", "4G", "--", "sh", "-c", script])
        .env("LD_PRELOAD", "libc.so.6")
        .env("GPULIMIT_MAX", "1G")
        .output()
        .expect("started");
    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], format!("{}:libc.so.6", library().display()));
    assert!(lines[1].starts_with("run-"), "{out}");
    assert_eq!(lines[2], place.root_path().display().to_string());
    assert_eq!(lines[3], "unset");
}

#[test]
fn the_controller_does_not_look_through_its_own_library() {
    let place = Place::new();
    // The figures of a group come from members, and `show` in a group is none.
    let script = format!("{} doctor; true", env!("CARGO_BIN_EXE_gpulimit"));
    let out = place.said(&["run", "--max", "4G", "--", "sh", "-c", &script]);
    assert!(out.contains("asks for the group run-"), "{out}");
    assert!(!out.contains("LD_PRELOAD="), "{out}");
    let nested = format!(
        "{} run --max 2G -- sh -c 'echo $LD_PRELOAD'",
        env!("CARGO_BIN_EXE_gpulimit")
    );
    let out = place.said(&["run", "--max", "4G", "--", "sh", "-c", &nested]);
    assert_eq!(out.trim(), library().display().to_string());
}

#[test]
fn run_passes_the_status_on() {
    let place = Place::new();
    let run = |command: &[&str]| {
        let arguments = [&["run", "--max", "4G", "--"], command].concat();
        place.output(&arguments).status
    };
    assert_eq!(run(&["true"]).code(), Some(0));
    assert_eq!(run(&["sh", "-c", "exit 77"]).code(), Some(77));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).signal(), Some(9));
    assert_eq!(run(&["sh", "-c", "kill -SEGV $$"]).signal(), Some(11));
    assert_eq!(run(&["/etc/passwd"]).code(), Some(126));
    assert_eq!(run(&["/tmp"]).code(), Some(126));
    assert_eq!(run(&["no-such-command"]).code(), Some(127));
    assert_eq!(run(&["/no/such/command"]).code(), Some(127));
}

#[test]
fn run_leaves_input_and_output_alone() {
    let place = Place::new();
    let mut child = place
        .gpulimit(&["run", "--max", "4G", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"as it came")
        .expect("written");
    let output = child.wait_with_output().expect("ended");
    assert_eq!(
        (output.stdout, output.stderr),
        (b"as it came".to_vec(), Vec::new())
    );
}

#[test]
fn a_group_of_ones_own_is_there_while_the_command_runs_and_gone_after() {
    let place = Place::new();
    let show = format!("{} show --json", env!("CARGO_BIN_EXE_gpulimit"));
    let during = place.json(&["run", "--max", "4G", "--", "sh", "-c", &show]);
    let group = &during["groups"][0];
    assert!(
        group["name"].as_str().expect("a name").starts_with("run-"),
        "{during}"
    );
    assert_eq!(group["kind"], "job");
    assert_eq!(
        group["limits"][0],
        serde_json::json!({ "gpu": "all", "max": "4GiB" })
    );
    assert_eq!(place.root().groups().expect("listed"), []);
    assert!(
        place
            .output(&["run", "--max", "4G", "--", "no-such-command"])
            .status
            .code()
            == Some(127)
    );
    assert_eq!(place.root().groups().expect("listed"), []);
}

#[test]
fn a_named_group_stays_and_keeps_its_limit() {
    let place = Place::new();
    place.said(&["run", "--name", "lab", "--max", "4G", "--", "true"]);
    place.said(&["run", "--name", "lab", "--max", "4096M", "--", "true"]);
    place.said(&["run", "--name", "lab", "--", "true"]);
    let error = place.refused(125, &["run", "--name", "lab", "--max", "8G", "--", "true"]);
    assert!(error.contains("has max 4GiB, not max 8GiB"), "{error}");
    assert!(error.contains("gpulimit set lab max=8GiB"), "{error}");
    let limits = place
        .root()
        .group("lab")
        .expect("there")
        .limits()
        .expect("read");
    assert_eq!(
        limits.rules().expect("rules"),
        LimitSet::all(Size::Bytes(4 * GIB))
    );
}

#[test]
fn a_group_whose_command_was_killed_is_collected_by_the_next() {
    let place = Place::new();
    let mut child = shell(&place, "echo ready; sleep 60");
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(place.root().groups().expect("listed").len(), 1);
    place.said(&["run", "--max", "4G", "--", "true"]);
    assert_eq!(place.root().groups().expect("listed"), []);
}

#[test]
fn a_full_uuid_needs_no_driver() {
    let place = Place::new();
    let uuid = GPU.to_string();
    place.said(&[
        "run", "--name", "lab", "--max", "25%", "--device", &uuid, "--", "true",
    ]);
    let limits = place
        .root()
        .group("lab")
        .expect("there")
        .limits()
        .expect("read");
    assert_eq!(limits.rules().expect("rules"), {
        let mut expected = LimitSet::default();
        expected.set(Selector::Device(GPU), Key::Max, Size::Percent(2500));
        expected
    });
}

#[test]
fn a_library_that_would_not_be_loaded_is_refused() {
    let place = Place::new();
    let spaced = place.0.join("a b.so");
    fs::copy(library(), &spaced).expect("copied");
    let missing = place.0.join("nowhere.so");
    for (path, expected) in [
        (spaced.as_path(), "space or a colon"),
        (&missing, "cannot find"),
        (Path::new("/etc/passwd"), "invalid ELF header"),
    ] {
        let mut command = place.gpulimit(&["run", "--max", "4G", "--", "true"]);
        let output = command
            .env("GPULIMIT_LIBRARY", path)
            .output()
            .expect("started");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
}

#[test]
fn a_ledger_that_cannot_be_joined_is_told_before_the_command_starts() {
    let place = Place::new();
    place.group("lab", Size::Max);
    fs::write(place.root_path().join("lab/ledger"), "something else").expect("written");
    let error = place.refused(125, &["run", "--name", "lab", "--", "echo", "started"]);
    assert!(error.contains("lab/ledger"), "{error}");
}

// Signals.

/// A shell script in a group of its own that has said its first line.
fn shell(place: &Place, script: &str) -> Child {
    let run = place.gpulimit(&["run", "--max", "4G", "--", "sh", "-c", script]);
    // A shell cannot trap what its starter ignores, and those who start tests in the background ignore interrupts.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT,QUIT")
        .arg(run.get_program())
        .args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    let mut out = BufReader::with_capacity(1, child.stdout.as_mut().expect("piped"));
    out.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    child
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
            "n=0; trap 'n=$((n+1))' {signal}; trap 'exit $n' ALRM; echo ready; while :; do sleep 0.01; done"
        );
        let mut child = shell(&place, &script);
        kill(&child, signal);
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
        assert!(start.elapsed() < Duration::from_secs(10), "never stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(&child, "CONT");
    assert_eq!(child.wait().expect("ended").code(), Some(5));
}

// show, ps, set

#[test]
fn no_groups_are_said_and_not_an_error() {
    let place = Place::new();
    for verb in ["show", "ps"] {
        let output = place.output(&[verb]);
        assert!(
            output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
        assert!(
            text(&output.stderr).contains("gpulimit run --max 4G"),
            "{output:?}"
        );
    }
    assert_eq!(
        place.json(&["show", "--json"])["groups"],
        serde_json::json!([])
    );
    assert_eq!(
        place.json(&["ps", "--json"])["processes"],
        serde_json::json!([])
    );
    assert!(!place.root_path().exists(), "looking made something");
}

#[test]
fn unknown_is_a_dash_and_null() {
    let place = Place::new();
    place.group("lab", Size::Percent(5000));
    let out = place.said(&["show"]);
    let row = out.lines().nth(1).expect("a row");
    assert_eq!(words(row), ["lab", "all", "50%", "-", "-", "-", "-", "0"]);
    // A limit in percent of a GPU that nobody has seen.
    let group = place.root().group("lab").expect("there");
    group
        .write_limits(|set| set.set(Selector::Device(GPU), Key::Max, Size::Percent(1000)))
        .expect("written");
    let gpu = &place.json(&["show", "--json"])["groups"][0]["gpus"][0];
    assert_eq!(gpu["uuid"], GPU.to_string());
    assert!(
        gpu["max"].is_null() && gpu["free"].is_null() && gpu["index"].is_null(),
        "{gpu}"
    );
    assert_eq!(gpu["usage"], 0);
}

#[test]
fn figures_of_a_member() {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = place.member("lab");
    member
        .charge(&device, 3 * GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let refusal = member
        .charge(&device, 2 * GIB, &Nothing, Insistence::Full)
        .expect_err("full");
    member.count_refusal(&device, 2 * GIB, &refusal);
    member.uncharge(&device, GIB);
    member.publish(&device, Category::Linear, GIB);
    member.publish(&device, Category::Managed, GIB / 2);
    member.publish(&device, Category::Driver, GIB / 4);
    member.publish_idle(&device, GIB / 4, 0);

    let json = place.json(&["show", "lab", "--json"]);
    assert_eq!(json["schema"], 1);
    let gpu = &json["groups"][0]["gpus"][0];
    for (key, expected) in [
        ("capacity", CAPACITY),
        ("max", 4 * GIB),
        ("usage", 2 * GIB - GIB / 4),
        ("peak", 3 * GIB),
        ("free", 2 * GIB),
        ("refusals", 1),
        ("processes", 1),
    ] {
        assert_eq!(gpu[key], expected, "{key}: {gpu}");
    }
    let out = place.said(&["show"]);
    let row = words(out.lines().nth(1).expect("a row")).join(" ");
    assert_eq!(row, "lab GPU-1a2b… 4.0 GiB 1.8 GiB 3.0 GiB 2.0 GiB 1 1");

    let process = &place.json(&["ps", "--json"])["processes"][0];
    for (key, expected) in [
        ("pid", u64::from(std::process::id())),
        ("allocations", GIB),
        ("linear", GIB),
        ("arrays", 0),
        ("pools", 0),
        ("managed", GIB / 2),
        ("driver", GIB / 4),
        ("total", 2 * GIB - GIB / 4),
    ] {
        assert_eq!(process[key], expected, "{key}: {process}");
    }
    assert_eq!(process["group"], "lab");
    assert_eq!(process["state"], "running");
    let out = place.said(&["ps", "lab"]);
    assert!(
        out.contains(&std::process::id().to_string()) && out.contains("running"),
        "{out}"
    );
    assert!(
        !out.contains('\u{1b}'),
        "colours where there is no terminal"
    );
}

#[test]
fn a_member_without_memory_is_listed() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let _member = Member::join(&place.root(), "lab").expect("joined");
    let process = &place.json(&["ps", "--json"])["processes"][0];
    assert_eq!(process["pid"], std::process::id());
    assert!(
        process["gpu"].is_null() && process["total"].is_null(),
        "{process}"
    );
    assert_eq!(place.json(&["show", "--json"])["groups"][0]["processes"], 1);
}

#[test]
fn set_holds_for_members_at_once() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    let (member, device) = place.member("lab");
    member
        .charge(&device, 6 * GIB, &Nothing, Insistence::Full)
        .expect("fits");
    assert_eq!(
        place.said(&["set", "lab", "max=10%"]),
        "lab: max=10% applied to all GPUs\n"
    );
    assert_eq!(member.max(&device), 8 * GIB);
    let out = place.said(&["set", "lab", "max=4G"]);
    assert!(
        out.contains("applied; usage 6.0 GiB of GPU GPU-1a2b… is above the new max 4.0 GiB: growth is refused until it falls"),
        "{out}"
    );
    assert_eq!(member.max(&device), 4 * GIB);
    assert_eq!(member.free(&device), 0);
    let refusal = member
        .charge(&device, GIB, &Nothing, Insistence::Full)
        .expect_err("above the limit");
    assert_eq!(
        (refusal.group, refusal.charged, refusal.max),
        ("lab", 6 * GIB, 4 * GIB)
    );
    member.uncharge(&device, 3 * GIB);
    member
        .charge(&device, GIB, &Nothing, Insistence::Full)
        .expect("fits again");

    place.said(&["set", "lab", "max=2G", "--device", &GPU.to_string()]);
    assert_eq!(member.max(&device), 2 * GIB);
    let out = place.said(&["set", "lab", "max=max"]);
    assert!(out.contains("keeps its own max=2GiB"), "{out}");
    assert_eq!(member.max(&device), 2 * GIB);
}

#[test]
fn a_group_of_another_version_is_said_and_the_others_are_shown() {
    let place = Place::new();
    place.group("new", Size::Max);
    place.group("old", Size::Max);
    let path = place.root_path().join("new/limits");
    let mut bytes = fs::read(&path).expect("read");
    bytes[8] = 1;
    fs::write(&path, bytes).expect("written");
    let output = place.output(&["show", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("new/limits are of format 1, this gpulimit understands 2"),
        "{error}"
    );
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["groups"][0]["name"], "old");
    place.refused(125, &["run", "--name", "new", "--max", "4G", "--", "true"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut child = place
        .gpulimit(&["show"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ended");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

// doctor

#[test]
fn doctor_works_without_a_driver() {
    let place = Place::new();
    place.group("lab", Size::Max);
    // Nothing of a driver that this machine may have.
    let empty = place.0.join("libcuda.so.1");
    fs::write(&empty, "").expect("written");
    let output = place
        .gpulimit(&["doctor", "--json"])
        .env("LD_LIBRARY_PATH", &place.0)
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&json["schema"], &json["ok"]),
        (&Value::from(1), &Value::from(false))
    );
    let find = |check: &str| {
        let all = json["findings"].as_array().expect("findings").iter();
        all.filter(|finding| finding["check"] == check)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(find("driver")[0]["level"], "error");
    assert!(
        find("driver")[0]["remedy"]
            .as_str()
            .expect("a remedy")
            .contains("install")
    );
    assert_eq!(find("library")[0]["level"], "ok");
    assert_eq!(find("preload")[0]["level"], "ok");
    assert_eq!(find("root")[0]["level"], "ok");
    assert_eq!(find("environment")[0]["text"], "asks for no limit");
    let out = text(&place.output(&["doctor"]).stdout);
    assert!(out.contains("Limits can"), "{out}");
}

#[test]
fn doctor_names_what_is_wrong() {
    let place = Place::new();
    fs::create_dir(place.root_path()).expect("created");
    fs::create_dir(place.root_path().join("half")).expect("created");
    let output = place
        .gpulimit(&["doctor"])
        .env("GPULIMIT_MAX", "4Q")
        .env("GPULIMIT_LIBRARY", "/nowhere.so")
        .output()
        .expect("started");
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("GPULIMIT_MAX='4Q'"), "{out}");
    assert!(
        out.contains("cannot find libgpulimit.so (tried /nowhere.so)"),
        "{out}"
    );
    assert!(out.contains("half is no complete group"), "{out}");
}

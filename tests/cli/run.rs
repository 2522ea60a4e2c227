//! `run`

use crate::place::{GIB, GPU, Nothing, Place, Running, library, on, text, wait_until};
use crate::signals::shell;
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_support::executable;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

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

/// A program with AddressSanitizer refuses to start if a preload comes before its runtime.
#[test]
fn run_starts_programs_with_address_sanitizer() {
    let place = Place::new();
    let code = "int main(void) { return 7; }\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = executable::compiled(folder, "asan", code, &["-fsanitize=address"]);
    let run = |set: Option<&str>, words: &[&str]| {
        let mut command = place.gpulimit(&[&["run", "--max", "4G", "--"], words].concat());
        if let Some(set) = set {
            command.env("ASAN_OPTIONS", set);
        }
        command.output().expect("started")
    };
    let program = program.to_str().expect("text");
    for set in [None, Some("detect_leaks=0"), Some("")] {
        let output = run(set, &[program]);
        assert_eq!(output.status.code(), Some(7), "{set:?}: {output:?}");
    }
    let own = "verify_asan_link_order=1:detect_leaks=0";
    assert_ne!(run(Some(own), &[program]).status.code(), Some(7));
    let output = run(Some(own), &["sh", "-c", "echo $ASAN_OPTIONS"]);
    assert_eq!(text(&output.stdout).trim(), own);
}

#[test]
fn run_refuses_programs_for_musl_in_one_line() {
    let place = Place::new();
    let code = "int main(void) { return 0; }\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let linker = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    let program = executable::compiled(folder, "for-musl", code, &[linker]);
    let script = place.at("script");
    fs::write(&script, format!("#!{}\n", program.display())).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("changed");
    let found = format!("{}:/usr/bin:/bin", place.0.display());
    for (name, path) in [
        (&*program.display().to_string(), "/usr/bin"),
        ("script", &found),
    ] {
        let mut command = place.gpulimit(&["run", "--max", "4G", "--", name]);
        let output = command.env("PATH", path).output().expect("started");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "{said}");
        assert!(said.contains("linked to musl (/lib/ld-musl") && said.lines().count() == 1);
        assert!(
            place.said(&["show", "--names"]).is_empty(),
            "no group is left"
        );
    }
}

#[test]
fn the_controller_runs_without_the_preloaded_library() {
    let place = Place::new();
    // Members report the figures of a group, and `show` run inside the group is not a member.
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
fn run_returns_the_commands_status() {
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
fn run_leaves_input_and_output_unchanged() {
    let place = Place::new();
    let mut command = place.gpulimit(&["run", "--max", "4G", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Running::start(command.stderr(Stdio::piped()));
    let input = child.stdin.as_mut().expect("piped");
    input.write_all(b"as it came").expect("written");
    let output = child.ended();
    assert_eq!(
        (output.stdout, output.stderr),
        (b"as it came".to_vec(), Vec::new())
    );
}

#[test]
fn a_jobs_group_exists_only_while_its_command_runs() {
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
    assert_eq!(place.said(&["show", "--names"]), "");
    place.clean();
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
    assert!(error.contains("has max=4GiB, not max=8GiB"), "{error}");
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
fn the_next_run_removes_the_group_of_a_killed_command() {
    let place = Place::new();
    let mut child = shell(&place, &[], "echo ready; read line");
    let group = place.root().groups().expect("listed").remove(0);
    assert!(!group.has_ended());
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert!(group.has_ended() && group.path().exists());
    place.said(&["run", "--max", "4G", "--", "true"]);
    assert!(!group.path().exists());
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
fn a_library_that_cannot_be_preloaded_is_refused() {
    let place = Place::new();
    let spaced = place.0.join("a b.so");
    fs::copy(library(), &spaced).expect("copied");
    let missing = place.0.join("nowhere.so");
    for (path, expected) in [
        (spaced.as_path(), "space or a colon"),
        (&missing, "cannot find"),
        (Path::new("/etc/passwd"), "not an ELF file"),
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
fn an_unusable_ledger_is_reported_before_the_command_starts() {
    let place = Place::new();
    place.group("lab", Size::Max);
    fs::write(place.root_path().join("lab/ledger"), "something else").expect("written");
    let error = place.refused(125, &["run", "--name", "lab", "--", "echo", "started"]);
    assert!(error.contains("lab/ledger"), "{error}");
}

/// Returns a command that becomes a member of the group that `run` gives it, for a moment.
fn member() -> Vec<String> {
    let own = std::env::current_exe().expect("known");
    let script = format!(
        "GPULIMIT_TEST_MEMBER=$GPULIMIT_GROUP {} --exact place::member_process \
            --ignored </dev/null >/dev/null",
        own.display()
    );
    ["sh", "-c", &script].map(String::from).into()
}

#[test]
fn a_jobs_group_is_below_the_named_or_the_callers_group() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    place.group("lab/alice", Size::Max);
    let named = place.said(&[
        "run",
        "--group",
        "lab/alice",
        "--",
        "sh",
        "-c",
        "echo $GPULIMIT_GROUP",
    ]);
    assert!(named.starts_with("lab/alice/run-"), "{named}");
    let inherited = |group: &str| {
        let output = place
            .gpulimit(&[
                "run",
                "--max",
                "1G",
                "--",
                "sh",
                "-c",
                "echo $GPULIMIT_GROUP",
            ])
            .env("GPULIMIT_GROUP", group)
            .output()
            .expect("started");
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    assert!(inherited("lab").1.starts_with("lab/run-"));
    // The limits of these jobs are not known any more.
    for gone in ["job-1-2", "run-1-2", "lab/run-1-2"] {
        let (status, _, error) = inherited(gone);
        assert_eq!(status, Some(125));
        assert!(error.contains("unset GPULIMIT_GROUP"), "{error}");
    }
    let (status, _, error) = inherited("lob");
    assert_eq!(status, Some(125));
    assert!(
        error.contains("GPULIMIT_GROUP is set, and no group 'lob'"),
        "{error}"
    );
    for (name, value) in [
        ("GPULIMIT_MAX", "0=3G"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3g"),
    ] {
        let mut run = place.gpulimit(&["run", "--", "true"]);
        // The library adds the group.
        let run = run
            .env(name, value)
            .env("GPULIMIT_GROUP", "job-1-2")
            .output();
        let error = text(&run.expect("started").stderr);
        assert!(
            error.contains(&format!("`unset {name} GPULIMIT_GROUP`")),
            "{error}"
        );
        assert!(!error.contains("is set"), "{error}");
    }
    let nested = format!(
        "{} run --max 1G -- sh -c 'echo $GPULIMIT_GROUP'",
        env!("CARGO_BIN_EXE_gpulimit")
    );
    let out = place.said(&["run", "--group", "lab", "--", "sh", "-c", &nested]);
    assert_eq!(out.matches("/run-").count(), 2, "{out}");
    let error = place.refused(125, &["run", "--group", "lob", "--", "true"]);
    assert!(error.contains("no group 'lob'"), "{error}");
    assert_eq!(place.said(&["show", "--names"]), "lab\nlab/alice\n");
}

#[test]
fn options_of_run_can_be_combined() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let uuid = GPU.to_string();
    let get = format!("{} get $GPULIMIT_GROUP", env!("CARGO_BIN_EXE_gpulimit"));
    let mut arguments = vec!["run", "--max", "30%", "--high", "20%", "--device", &uuid];
    arguments.extend(["--wait", "90s", "--group", "lab", "--", "sh", "-c", &get]);
    let out = place.said(&arguments);
    for line in [
        format!("max=30% --device {uuid}"),
        format!("high=20% --device {uuid}"),
        "on_limit=wait".into(),
        "wait_timeout=90s".into(),
    ] {
        assert!(out.lines().any(|there| there == line), "{line}: {out}");
    }
    arguments.splice(9..9, ["--name", "stays"]);
    assert_eq!(place.said(&arguments), out);
    place.said(&arguments);
    assert_eq!(place.said(&["show", "--names"]), "lab\nlab/stays\n");
    arguments[2] = "40%";
    let error = place.refused(125, &arguments);
    assert!(error.contains("group 'lab/stays' exists"), "{error}");
    let error = place.refused(2, &["run", "--max", "1G", "--wait", "long", "--", "true"]);
    assert!(error.contains("30s, 10m or 2h"), "{error}");
}

#[test]
fn a_group_of_the_deepest_level_has_no_jobs_below() {
    let place = Place::new();
    let deep = ["d"; 8].join("/");
    place.said(&["create", &deep, "--parents"]);
    let error = place.refused(125, &["run", "--group", &deep, "--max", "1G", "--", "true"]);
    assert!(error.contains("is already 8 levels deep"), "{error}");
    let out = place.said(&[
        "run",
        "--name",
        &deep,
        "--",
        "sh",
        "-c",
        "echo $GPULIMIT_GROUP",
    ]);
    assert_eq!(out.trim(), deep);
}

/// A named group has the peak of all its jobs on record. That of this second may be an older one.
#[test]
fn stat_says_the_peak_since_the_command_began() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    let other = place.member("lab");
    let device = on(&other);
    let charged = device.charge(5 * GIB, &Nothing, Insistence::Full);
    charged.expect("fits");
    device.uncharge(5 * GIB);
    drop(other);
    let member = member();
    let mut arguments = vec!["run", "--stat", "--name", "lab", "--"];
    arguments.extend(member.iter().map(String::as_str));
    wait_until("no older figure is in the way", || {
        let said = text(&place.output(&arguments).stderr);
        assert!(!said.contains(", peak 5.0 GiB,"), "{said}");
        said.contains("1.0 GiB, refused 0")
    });
}

#[test]
fn stat_prints_a_summary_at_the_end() {
    let place = Place::new();
    place.group("lab", Size::Bytes(8 * GIB));
    let mut arguments = vec!["run", "--stat", "--group", "lab", "--max", "50%", "--"];
    let member = member();
    arguments.extend(member.iter().map(String::as_str));
    let output = place.output(&arguments);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("gpulimit: lab/run-") && lines[0].ends_with(" elapsed, exit status 0"),
        "{said}"
    );
    assert!(
        lines[1].ends_with(": GPU GPU-1a2b…: max 8.0 GiB (of lab), peak 1.0 GiB, refused 0"),
        "{said}"
    );
    // The exit status is still the command's.
    let output = place.output(&[
        "run",
        "--stat",
        "--max",
        "1G",
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ]);
    assert_eq!(output.status.signal(), Some(9));
    let said = text(&output.stderr);
    assert!(
        said.contains("ended by SIGKILL") && said.contains("no GPU was used"),
        "{said}"
    );
    // The summary leaves out what other processes did in the group before.
    let error = place.output(&["run", "--stat", "--name", "lab", "--", "false"]);
    assert_eq!(error.status.code(), Some(1));
    assert!(
        text(&error.stderr).contains("lab: GPU GPU-1a2b…: max 8.0 GiB"),
        "{error:?}"
    );
}

#[test]
fn run_compares_only_the_given_limits_with_an_existing_group() {
    let place = Place::new();
    place.said(&["create", "lab", "--max", "4G"]);
    let run = |options: &[&str]| {
        let arguments = [&["run", "--name", "lab"], options, &["--", "true"]].concat();
        place.output(&arguments)
    };
    let said = |options: &[&str]| {
        let error = text(&run(options).stderr);
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (options, expected) in [
        (
            &["--wait", "10m"][..],
            "has on_limit=fail, not on_limit=wait: leave these limits out to join it, or change it \
             with `gpulimit set lab on_limit=wait`",
        ),
        (
            &["--wait", "5m", "--max", "4GiB", "--high", "3G"],
            "has no high, on_limit=fail, wait_timeout=10m, not high=3GiB, on_limit=wait, \
             wait_timeout=5m: leave these limits out to join it, or change it with `gpulimit set \
             lab high=3GiB on_limit=wait wait_timeout=5m`",
        ),
        (
            &[
                "--max",
                "2G",
                "--device",
                "GPU-1a2b0304-0506-0708-090a-0b0c0d0e0f10",
            ],
            "has max=4GiB --device GPU-1a2b0304-0506-0708-090a-0b0c0d0e0f10, not max=2GiB \
             --device GPU-1a2b0304-0506-0708-090a-0b0c0d0e0f10: leave these limits out to \
             join it, or change it with `gpulimit set lab max=2GiB --device \
             GPU-1a2b0304-0506-0708-090a-0b0c0d0e0f10`",
        ),
    ] {
        let said = said(options);
        assert!(said.ends_with(expected), "{said}");
    }
    place.said(&["set", "lab", "on_limit=wait"]);
    for options in [
        &["--wait", "10m"][..],
        &["--max", "4096M"],
        &["--max", "4G", "--wait", "10m"],
    ] {
        let output = run(options);
        assert!(output.status.success(), "{options:?}: {output:?}");
    }
}

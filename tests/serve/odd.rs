//! Off the beaten path: what the server shows when groups, the driver or files are not as usual.

use super::rig::{GIB, Rig, Server, steady};
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_ledger::{Ledger, Level, try_charge};
use gpulimit_programs::world::{Session, eventually, may_mount, program};
use gpulimit_support::skip;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;

fn names(state: &serde_json::Value) -> Vec<&str> {
    let groups = state["groups"].as_array().unwrap().iter();
    groups
        .map(|group| group["name"].as_str().unwrap())
        .collect()
}

#[test]
fn a_root_that_is_removed_and_made_again_is_noticed() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let server = rig.unix(&[]);
    let first = rig.member("lab", GIB);
    server.until(|state| state["groups"][0]["gpus"][0]["usage"] == GIB);
    fs::remove_dir_all(rig.world.root().path()).unwrap();
    server.until(|state| names(state).is_empty());
    assert!(!server.place.metrics().contains("{group="));
    fs::create_dir(rig.world.root().path()).unwrap();
    rig.group("lab", Size::Bytes(2 * GIB));
    let _second = rig.member("lab", GIB / 2);
    let state = server.until(|state| state["groups"][0]["gpus"][0]["usage"] == GIB / 2);
    assert_eq!(state["groups"][0]["gpus"][0]["max"], 2 * GIB);
    drop(first);
}

#[test]
fn changed_limits_and_removed_groups_are_noticed() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    rig.group("other", Size::Max);
    let _member = rig.member("lab", GIB);
    let server = rig.unix(&[]);
    server.until(|state| names(state) == ["lab", "other"]);
    for arguments in [&["set", "lab", "--max", "3G"][..], &["rm", "other"]] {
        assert!(rig.gpulimit(arguments).output().unwrap().status.success());
    }
    let state = server.until(|state| names(state) == ["lab"]);
    assert_eq!(state["groups"][0]["gpus"][0]["max"], 3 * GIB);
}

#[test]
fn the_sum_of_limits_has_top_groups_that_have_not_used_the_gpu() {
    let rig = Rig::with(&[("GPULIMIT_SIM_GPUS", "2")]);
    rig.group("a", Size::Bytes(20 * GIB));
    rig.group("a/below", Size::Bytes(5 * GIB));
    rig.group("b", Size::Bytes(70 * GIB));
    let _member = rig.member("a", GIB);
    let top = || {
        let output = rig.gpulimit(&["top", "--once"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let sums = |state: &serde_json::Value| {
        let gpus = state["gpus"].as_array().unwrap().iter();
        gpus.map(|gpu| gpu["limits"].clone()).collect::<Vec<_>>()
    };
    let server = rig.unix(&[]);
    server.until(|state| sums(state).iter().all(|sum| *sum == 90 * GIB));
    let text = top();
    assert_eq!(text.matches("limits 90.0G").count(), 2, "{text}");
    rig.group("c", Size::Max);
    server.until(|state| sums(state).iter().all(serde_json::Value::is_null));
    let text = top();
    assert!(!text.contains("limits "), "{text}");
}

#[test]
fn a_server_without_a_driver_shows_groups() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let _member = rig.member("lab", GIB);
    let listen = format!("unix:{}", rig.socket().display());
    let mut command = rig.gpulimit(&["serve", "--listen", &listen]);
    command.env_remove("LD_LIBRARY_PATH");
    let server = Server::start(command);
    let state = server.place.json("/api/v1/state");
    if state["gpus"][0]["used"].is_u64() {
        skip("this machine has a driver");
        return;
    }
    assert_eq!(state["groups"][0]["gpus"][0]["usage"], GIB);
    let gpu = &state["gpus"][0];
    assert!(
        gpu["used"].is_null() && gpu["others"].is_null() && gpu["outside"].is_null(),
        "{gpu}"
    );
    assert_eq!(gpu["groups"], GIB);
    let text = server.place.metrics();
    let uuid = gpu["uuid"].as_str().unwrap();
    assert!(
        text.contains(&format!(
            "gpulimit_memory_usage_bytes{{group=\"lab\",gpu=\"{}\",uuid=\"{uuid}\"}}",
            &uuid[..12]
        )),
        "{text}"
    );
    assert!(!text.contains("gpulimit_gpu_memory_used_bytes{"), "{text}");
}

/// Instances have no index, and queries that group by GPU must not merge them.
#[test]
fn mig_instances_are_told_apart() {
    let rig = Rig::with(&[("GPULIMIT_SIM_MIG", "2")]);
    let server = rig.unix(&[]);
    let text = server.place.metrics();
    let labels: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("gpulimit_gpu_memory_total_bytes{gpu=\""))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(labels.len(), 2, "{text}");
    let are_instances = labels.iter().all(|label| label.starts_with("MIG-"));
    assert!(are_instances, "{labels:?}");
}

/// A file that is not a group's, and a ledger that is cut short, hide only their own group.
#[test]
fn damaged_groups_hide_no_others() {
    let rig = Rig::new();
    for name in ["a", "b", "c"] {
        rig.group(name, Size::Bytes(GIB));
    }
    fs::write(rig.world.root().path().join("b/ledger"), "short").unwrap();
    let server = rig.unix(&[]);
    assert_eq!(names(&server.place.json("/api/v1/state")), ["a", "c"]);
    let answer = server.place.get("/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("{group=\"c\""), "{answer:?}");
}

#[test]
fn the_largest_number_of_members_is_shown() {
    let rig = Rig::new();
    rig.group("lab", Size::Max);
    let group = rig.world.root().group("lab").unwrap();
    let ledger = Arc::new(Ledger::open(&group.ledger_path()).unwrap());
    let device = ledger.device(rig.gpu_id(), 80 * GIB).unwrap();
    let mut slots = Vec::new();
    // A ledger has room for 4,096 members. The slots of one process would count as one.
    for start_time in 1..=4_096 {
        let process = Identity {
            start_time,
            ..Identity::of_self()
        };
        let slot = ledger.claim(&process, "").expect("room");
        let level = Level {
            slot: &slot,
            device,
            max: u64::MAX,
            protection: None,
            keeps_low: false,
            uncovered: None,
        };
        assert!(try_charge(&[level], 1 << 20));
        slots.push(slot);
    }
    let server = rig.unix(&[]);
    let state = server.place.json("/api/v1/state");
    assert_eq!(state["processes"].as_array().unwrap().len(), 4_096);
    assert_eq!(state["groups"][0]["gpus"][0]["usage"], 4u64 << 30);
    let text = server.place.metrics();
    assert!(text.contains("state=\"running\"} 4096\n"), "{text}");
}

/// Starts a server by a script in a mount namespace of its own. `$0` is the controller, `$1` the
/// path of the socket.
fn with_mounts(rig: &Rig, script: &str) -> Server {
    let controller = rig.gpulimit(&[]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(controller.get_program())
        .arg(rig.socket());
    for (name, value) in controller.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Server::start(command)
}

/// Nobody cleans the groups after a killed process, and the server cannot.
#[test]
fn a_server_that_cannot_write_leaves_out_killed_processes() {
    if !may_mount() {
        return;
    }
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    rig.group("lab/alice", Size::Bytes(4 * GIB));
    let mut program = rig.world.preloaded(program());
    program.env("GPULIMIT_GROUP", "lab/alice");
    let mut program = Session::start(program);
    assert_eq!(program.say("start"), "0 0");
    let script = r#"
        mount --bind "$GPULIMIT_ROOT" "$GPULIMIT_ROOT" &&
        mount -o remount,bind,ro "$GPULIMIT_ROOT" && exec "$0" serve --listen "unix:$1"
    "#;
    let server = with_mounts(&rig, script);
    let is = |used: bool, processes: usize| {
        let state = server.place.json("/api/v1/state");
        let groups = state["groups"].as_array().unwrap();
        let figures = groups.iter().all(|group| {
            let gpu = &group["gpus"][0];
            let is_free = gpu["usage"] == 0 && gpu["free"] == gpu["max"];
            let counts = group["processes"] == processes && gpu["processes"] == processes;
            is_free != used && counts
        });
        let grouped = state["gpus"][0]["groups"] != 0;
        figures && grouped == used && state["processes"].as_array().unwrap().len() == processes
    };
    assert!(is(true, 1), "{}", server.place.json("/api/v1/state"));
    program.kill();
    let state = || server.place.json("/api/v1/state");
    assert!(eventually(|| is(false, 0)), "{}", state());
}

/// The groups' file system is full, as a member of a group can make it.
#[test]
fn a_full_file_system_changes_nothing() {
    if !may_mount() {
        return;
    }
    let rig = Rig::new();
    let script = r#"
        set -e
        mount -t tmpfs -o size=4M,mode=755 none "$GPULIMIT_ROOT"
        "$0" create lab --max 4G >&2
        dd if=/dev/zero of="$GPULIMIT_ROOT/fill" bs=64k 2>/dev/null || true
        exec "$0" serve --listen "unix:$1"
    "#;
    let server = with_mounts(&rig, script);
    assert_eq!(names(&server.place.json("/api/v1/state")), ["lab"]);
    let text = server.place.metrics();
    assert!(
        text.contains("gpulimit_events_total{group=\"lab\",event=\"kill\"} 0\n"),
        "{text}"
    );
}

#[test]
fn a_restarted_server_shows_the_same() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let _member = rig.member("lab", GIB);
    let mut server = rig.unix(&[]);
    let shown = |server: &Server| {
        let mut state = server.place.json("/api/v1/state");
        state["time"].take();
        state["processes"] = steady(&state["processes"]);
        state
    };
    let before = shown(&server);
    server.end(15);
    assert_eq!(shown(&rig.unix(&[])), before);
}

#[test]
fn too_few_descriptors_are_an_error() {
    let rig = Rig::new();
    let listen = format!("unix:{}", rig.socket().display());
    let controller = rig.gpulimit(&[]);
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 8; exec \"$0\" serve --listen \"$1\""])
        .arg(controller.get_program())
        .arg(listen);
    let output = command.output().expect("started");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("gpulimit: cannot open 16 files: ") && said.contains("ulimit -n 1024"),
        "{said}"
    );
    assert!(!rig.socket().exists(), "nothing is left");
}

#[test]
fn what_a_gpu_does_is_shown_as_far_as_nvml_tells_it() {
    const KEYS: [&str; 6] = [
        "busy",
        "temperature",
        "power",
        "power_limit",
        "clock",
        "memory_clock",
    ];
    let rig = Rig::with(&[
        ("GPULIMIT_SIM_GPUS", "2"),
        ("GPULIMIT_SIM_BUSY", "97,35"),
        ("GPULIMIT_SIM_TEMPERATURE", "71,54"),
        ("GPULIMIT_SIM_POWER", "651500,301000"),
    ]);
    rig.group("lab", Size::Bytes(4 * GIB));
    let _member = rig.member("lab", GIB);
    let server = rig.unix(&[]);
    let figures = |gpu: &serde_json::Value| KEYS.map(|key| gpu[key].as_u64());
    let all = [
        [97, 71, 652, 700, 1980, 2619].map(Some),
        [35, 54, 301, 700, 1980, 2619].map(Some),
    ];
    for (at, expected) in all.iter().enumerate() {
        for verb in [&["show", "--json"][..], &["top", "--once", "--json"]] {
            assert_eq!(figures(&rig.shown(verb)["gpus"][at]), *expected, "{verb:?}");
        }
        server.until(|state| figures(&state["gpus"][at]) == *expected);
    }
    let one = rig.shown(&["show", "--json", "--device", "1"]);
    assert_eq!(one["gpus"].as_array().map(Vec::len), Some(1), "{one}");
    let metrics = server.place.metrics();
    let has = |metrics: &str, name: &str, value: &str| {
        let series = format!("gpulimit_gpu_{name}{{gpu=\"0\",");
        let line = metrics.lines().find(|line| line.starts_with(&series));
        line.is_some_and(|line| line.ends_with(&format!("}} {value}")))
    };
    for (name, value) in [
        ("utilization_ratio", "0.97"),
        ("temperature_celsius", "71"),
        ("power_watts", "652"),
        ("power_limit_watts", "700"),
        ("clock_hertz", "1980000000"),
        ("memory_clock_hertz", "2619000000"),
    ] {
        assert!(has(&metrics, name, value), "{name}: {metrics}");
    }
    rig.world.machine().knob(
        "fail",
        "nvmlDeviceGetUtilizationRates:3,nvmlDeviceGetPowerUsage:3",
    );
    let told = [None, Some(71), None, Some(700), Some(1980), Some(2619)];
    server.until(|state| figures(&state["gpus"][0]) == told);
    let metrics = server.place.metrics();
    assert!(has(&metrics, "temperature_celsius", "71"), "{metrics}");
    for name in ["utilization_ratio", "power_watts"] {
        assert!(
            !metrics.contains(&format!("gpulimit_gpu_{name}{{")),
            "{name}"
        );
    }
    let shown = rig.gpulimit(&["top", "--once"]).output().unwrap();
    let shown = gpulimit_support::text(&shown.stdout);
    assert!(shown.contains("71C") && !shown.contains("busy"), "{shown}");
}

#[test]
fn nothing_is_known_of_what_a_mig_instance_does() {
    let rig = Rig::with(&[("GPULIMIT_SIM_MIG", "2"), ("GPULIMIT_SIM_BUSY", "50")]);
    rig.group("lab", Size::Bytes(4 * GIB));
    let shown = rig.shown(&["show", "--json"]);
    assert_eq!(shown["gpus"].as_array().map(Vec::len), Some(2), "{shown}");
    assert!(shown["gpus"][0]["total"].is_u64() && shown["gpus"][0]["busy"].is_null());
    assert!(shown["gpus"][1]["temperature"].is_null(), "{shown}");
}

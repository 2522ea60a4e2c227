//! Metrics: equal to what `show` prints, in both formats, also with hostile names.

use super::rig::{GIB, Rig, charge, refuse};
use gpulimit_base::units::Size;
use gpulimit_group::pod::Pod;
use gpulimit_ledger::Category;
use gpulimit_limits::{Key, Selector};
use gpulimit_support::{have, skip, wait_until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// The series of a text by name and labels.
type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Reads a text of metrics as strictly as Prometheus does.
fn parse(text: &str) -> Series {
    let mut all = Series::new();
    let mut families = BTreeSet::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap_or(""));
            match what {
                "HELP" => {
                    family = name.into();
                    assert!(families.insert(family.clone()), "{name} appears twice");
                }
                "TYPE" | "UNIT" => assert_eq!(name, family),
                "EOF" => assert!(text.ends_with("\n# EOF\n") && name.is_empty()),
                _ => panic!("{line}"),
            }
            continue;
        }
        let at = line.find(['{', ' ']).expect(line);
        let (name, mut rest) = line.split_at(at);
        assert!(name.starts_with(&family), "{name} is not of {family}");
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, after) = rest.split_once("=\"").expect(line);
                let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
                assert!(label.chars().all(is_name), "{line}");
                let mut value = String::new();
                let mut chars = after.char_indices();
                let end = loop {
                    match chars.next().expect(line) {
                        (_, '\\') => value.push(match chars.next().expect(line).1 {
                            'n' => '\n',
                            c @ ('\\' | '"') => c,
                            c => panic!("\\{c} in {line}"),
                        }),
                        (at, '"') => break at,
                        (_, c) => value.push(c),
                    }
                };
                let before = labels.insert(label.to_owned(), value);
                assert_eq!(before, None, "{line}");
                rest = &after[end + 1..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').expect(line);
        }
        let value = rest.strip_prefix(' ').expect(line).parse().expect(line);
        let before = all.insert((name.to_owned(), labels), value);
        assert_eq!(before, None, "{line} appears twice");
    }
    all
}

fn text(server: &super::rig::Server) -> String {
    let answer = server.place.get("/metrics");
    assert_eq!(
        answer.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    answer.body
}

/// Lets a program read a text, and returns what it says.
fn read_by(program: &mut Command, text: &str) -> (bool, String) {
    let piped = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("started");
    let mut input = child.stdin.take().unwrap();
    let text = text.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), gpulimit_support::text(&said))
}

/// Fails if the text is not one that Prometheus reads.
fn check_format(server: &super::rig::Server) {
    let text = text(server);
    if have("promtool") {
        let (done, said) = read_by(Command::new("promtool").args(["check", "metrics"]), &text);
        assert!(done && said.is_empty(), "{said}");
    }
    let reader = "import sys\n\
                  from prometheus_client.parser import text_string_to_metric_families\n\
                  print(len(list(text_string_to_metric_families(sys.stdin.read()))))";
    let mut python = Command::new("python3");
    let cache = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/prometheus");
    python.args(["-c", reader]).env("PYTHONPATH", cache);
    match read_by(&mut python, &text) {
        (true, said) => assert!(said.trim().parse::<u32>().unwrap() > 25, "{said}"),
        (false, said) if said.contains("No module named") => {
            skip("prometheus_client is missing (pip install --target .cache/prometheus)");
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the values of a metric by group and GPU.
fn by_group(series: &Series, name: &str, gpu: u64) -> BTreeMap<String, f64> {
    let of = |((found, labels), value): (&(String, BTreeMap<String, String>), &f64)| {
        let is_it = found == name && labels["gpu"] == gpu.to_string();
        is_it.then(|| (labels["group"].clone(), *value))
    };
    series.iter().filter_map(of).collect()
}

#[test]
fn metrics_are_what_show_prints() {
    let rig = Rig::with(&[("GPULIMIT_SIM_GPUS", "2")]);
    rig.group("lab", Size::Bytes(8 * GIB));
    rig.group("lab/alice", Size::Max);
    rig.group("idle", Size::Bytes(GIB));
    let lab = rig.world.root().group("lab").unwrap();
    lab.write_limits(|limits| {
        limits.set(Selector::All, Key::High, Size::Bytes(6 * GIB));
        limits.set(Selector::All, Key::Low, Size::Bytes(GIB));
    })
    .unwrap();
    let alice = rig.member("lab/alice", 3 * GIB);
    let device = rig.on(&alice);
    refuse(&device, 6 * GIB);
    device.publish(Category::Linear, 2 * GIB);
    device.publish(Category::Managed, GIB);
    let second = alice.device(rig.gpu(1), 80 * GIB).unwrap();
    charge(&second, GIB);
    rig.group("k8s-1", Size::Bytes(GIB));
    let view = rig.world.root().path().join(".kubernetes/k8s-1");
    std::fs::create_dir_all(&view).unwrap();
    std::fs::write(Pod::file(&view), "default/train/main").unwrap();
    let server = rig.unix(&["--processes"]);
    check_format(&server);
    let series = parse(&text(&server));
    let shown = rig.shown(&["show", "--json"]);
    for (name, key, factor) in [
        ("gpulimit_memory_usage_bytes", "usage", 1.0),
        ("gpulimit_memory_peak_bytes", "peak", 1.0),
        ("gpulimit_memory_free_bytes", "free", 1.0),
        ("gpulimit_memory_effective_max_bytes", "effective_max", 1.0),
        ("gpulimit_memory_max_bytes", "max", 1.0),
        ("gpulimit_memory_high_bytes", "high", 1.0),
        ("gpulimit_memory_low_bytes", "low", 1.0),
        ("gpulimit_memory_min_bytes", "min", 1.0),
        ("gpulimit_waiting_requests", "waiting", 1.0),
        ("gpulimit_refusals_total", "refusals", 1.0),
        ("gpulimit_waits_total", "waits", 1.0),
        ("gpulimit_wait_seconds_total", "waited_ms", 0.001),
    ] {
        for gpu in 0..2 {
            let mut seen = by_group(&series, name, gpu);
            let mut known = BTreeMap::new();
            for group in shown["groups"].as_array().unwrap() {
                let gpus = group["gpus"].as_array().unwrap().iter();
                for figures in gpus.filter(|figures| figures["index"] == gpu) {
                    let value = figures[key].as_f64();
                    let name = group["name"].as_str().unwrap().to_owned();
                    known.extend(value.map(|value| (name, value * factor)));
                }
            }
            if matches!(name, "gpulimit_refusals_total" | "gpulimit_waits_total") {
                // A group that has not used a GPU yet has the counter, which is 0: Prometheus
                // does not see the first step of a series that begins with it.
                for unused in ["idle", "k8s-1"] {
                    assert_eq!(seen.remove(unused), Some(0.0), "{name}");
                }
            }
            assert_eq!(seen, known, "{name} on GPU {gpu}");
        }
    }
    assert_eq!(
        by_group(&series, "gpulimit_memory_usage_bytes", 0)["lab"],
        3.0 * GIB as f64
    );
    assert_eq!(by_group(&series, "gpulimit_refusals_total", 0)["lab"], 1.0);
    let one = |name: &str, labels: &[(&str, &str)]| {
        let is_it = |((found, all), _): &(&(String, BTreeMap<String, String>), &f64)| {
            let has = |(key, value): &(&str, &str)| all.get(*key).is_some_and(|it| it == value);
            found == name && labels.iter().all(has)
        };
        let found: Vec<f64> = series
            .iter()
            .filter(is_it)
            .map(|(_, value)| *value)
            .collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}");
        found[0]
    };
    let alice = ("group", "lab/alice");
    let category = |name| {
        one(
            "gpulimit_memory_category_bytes",
            &[alice, ("gpu", "0"), ("category", name)],
        )
    };
    assert_eq!(
        (category("linear"), category("managed")),
        (2.0 * GIB as f64, GIB as f64)
    );
    let processes = |state| {
        one(
            "gpulimit_processes",
            &[alice, ("gpu", "0"), ("state", state)],
        )
    };
    assert_eq!((processes("running"), processes("draining")), (1.0, 0.0));
    let pid = std::process::id().to_string();
    let labels = [alice, ("gpu", "0"), ("pid", &*pid)];
    assert_eq!(
        one("gpulimit_process_memory_bytes", &labels),
        3.0 * GIB as f64
    );
    let events = one(
        "gpulimit_events_total",
        &[("group", "lab"), ("event", "refusal")],
    );
    assert_eq!(events, 1.0);
    assert_eq!(
        one(
            "gpulimit_events_total",
            &[("group", "idle"), ("event", "kill")]
        ),
        0.0
    );
    let used = |name| one(name, &[alice, ("gpu", "0")]);
    assert_eq!(used("gpulimit_suspected_leak"), 0.0);
    assert!(used("gpulimit_user_memory_byte_seconds_total") >= 0.0);
    let root = rig.world.root().path().to_str().unwrap();
    let pod = [
        ("namespace", "default"),
        ("pod", "train"),
        ("container", "main"),
    ];
    let labels = [&[("group", "k8s-1")][..], &pod].concat();
    assert_eq!(one("gpulimit_group_info", &labels), 1.0);
    assert_eq!(
        one(
            "gpulimit_group_info",
            &[alice, ("root", root), ("kind", "named")]
        ),
        1.0
    );
    let uuid = rig.gpu(0).to_string();
    let gpu = |name: &str| one(name, &[("gpu", "0"), ("uuid", &*uuid)]);
    let total = gpu("gpulimit_gpu_memory_total_bytes");
    assert_eq!(gpu("gpulimit_gpu_memory_free_bytes"), total);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(one("gpulimit_build_info", &[("version", version)]), 1.0);
    let without = rig.tcp(&["--public"]);
    assert!(!text(&without).contains("gpulimit_process_memory_bytes"));
}

/// A program has memory of the driver, outside of all groups.
#[test]
fn memory_outside_all_groups_is_shown() {
    let rig = Rig::new();
    rig.group("lab", Size::Max);
    let member = rig.member("lab", 0);
    let device = rig.on(&member);
    let mut command = rig.world.bare(gpulimit_programs::world::program());
    command.stdin(Stdio::piped());
    let mut program = gpulimit_programs::world::Session::start(command);
    assert_eq!(program.say("start"), "0 0");
    let used = rig.world.machine().used();
    assert!(used > 0);
    let server = rig.unix(&[]);
    let gpu = |key: &str| {
        server.place.json("/api/v1/state")["gpus"][0][key]
            .as_u64()
            .unwrap()
    };
    assert_eq!((gpu("used"), gpu("others")), (used, used));
    assert_eq!((gpu("outside"), gpu("outsiders")), (used, 1));
    let metrics = server.place.metrics();
    let count = metrics
        .lines()
        .find(|line| line.starts_with("gpulimit_gpu_processes_outside{"));
    assert!(count.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    // Managed memory of a group is charged, but NVML does not show it.
    charge(&device, used);
    device.publish(Category::Managed, used / 2);
    server.until(|state| state["gpus"][0]["groups"] == used);
    assert_eq!((gpu("others"), gpu("outside")), (used - used / 2, used));
    let (_, errors) = program.end();
    assert_eq!(errors, "");
}

/// The figures of a ledger fall, as those of a killed process do for a moment.
#[test]
fn the_longest_wait_of_a_group_is_told() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(2 * GIB));
    let mut set = rig.gpulimit(&["set", "lab", "on_limit=wait", "wait_timeout=5m"]);
    assert!(set.status().expect("started").success());
    let holder = rig.member("lab", 2 * GIB);
    let member = rig.member("lab", 0);
    let device = rig.on(&member);
    let server = rig.unix(&[]);
    let oldest = || by_group(&parse(&text(&server)), "gpulimit_oldest_wait_seconds", 0)["lab"];
    assert_eq!(oldest(), 0.0);
    std::thread::scope(|scope| {
        scope.spawn(|| charge(&device, GIB));
        wait_until("the wait is told", || oldest() > 0.0);
        let top = rig.gpulimit(&["top", "--once"]).output().expect("started");
        let top = String::from_utf8_lossy(&top.stdout);
        assert!(top.contains("waits for 1.0 GiB"), "{top}");
        drop(holder);
    });
    wait_until("nobody waits", || oldest() == 0.0);
}

#[test]
fn counters_never_fall() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let member = rig.member("lab", GIB);
    let device = rig.on(&member);
    refuse(&device, 8 * GIB);
    let ledger = rig.world.root().group("lab").unwrap().ledger_path();
    let ledger = std::fs::File::options().read(true).write(true).open(ledger);
    let ledger = ledger.unwrap();
    // The statistics of the group are in the first 16 KiB.
    let mut early = vec![0; 16 << 10];
    ledger.read_exact_at(&mut early, 0).unwrap();
    refuse(&device, 8 * GIB);
    refuse(&device, 8 * GIB);
    let server = rig.unix(&[]);
    let before = parse(&text(&server));
    assert_eq!(by_group(&before, "gpulimit_refusals_total", 0)["lab"], 3.0);
    ledger.write_all_at(&early, 0).unwrap();
    let shown = rig.shown(&["show", "--json"]);
    assert_eq!(shown["groups"][0]["gpus"][0]["refusals"], 1);
    // A reading that has this group was made later.
    rig.group("later", Size::Max);
    wait_until("a reading is new", || text(&server).contains("\"later\""));
    let after = parse(&text(&server));
    let counters = before
        .iter()
        .filter(|((name, _), _)| name.ends_with("_total"));
    for (series, value) in counters {
        assert!(after[series] >= *value, "{series:?}: {value}");
    }
    // A group that is made anew begins at 0.
    drop(member);
    for arguments in [&["rm", "lab"][..], &["create", "lab", "--max", "4G"]] {
        assert!(rig.gpulimit(arguments).output().unwrap().status.success());
    }
    wait_until("the counter begins anew", || {
        let anew = parse(&text(&server));
        by_group(&anew, "gpulimit_refusals_total", 0).get("lab") == Some(&0.0)
    });
}

/// Members choose their command lines, and write them to the ledger.
#[test]
fn hostile_commands_break_no_format() {
    let rig = Rig::new();
    rig.group("lab", Size::Max);
    let _member = rig.member("lab", 0);
    let evil = "\"} 1\nfake_metric{a=\"b\"} 2\n\\ \u{1b}[31m<script>\u{202e}";
    let mut command = Command::new("sh");
    let own = std::env::current_exe().unwrap();
    command
        .args(["-c", "exec -a \"$0\" \"$@\"", evil])
        .arg(own)
        .args([
            "--exact",
            "metrics::member_process",
            "--ignored",
            "--nocapture",
        ])
        .env("GPULIMIT_ROOT", rig.world.root().path())
        .env("GPULIMIT_TEST_GPU", rig.gpu(0).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // Only bash has `exec -a`.
    let mut bash = Command::new("bash");
    bash.args(command.get_args());
    for (name, value) in command.get_envs() {
        bash.env(name, value.unwrap());
    }
    let mut child = bash
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let joined = |line: std::io::Result<String>| line.unwrap().contains("joined");
    assert!(out.by_ref().lines().any(joined));
    let server = rig.unix(&["--processes"]);
    check_format(&server);
    let series = parse(&text(&server));
    assert!(!series.keys().any(|(name, _)| name.starts_with("fake")));
    let commands: Vec<&String> = series
        .keys()
        .filter_map(|(_, labels)| labels.get("command"))
        .collect();
    assert!(
        commands
            .iter()
            .any(|command| command.contains("fake_metric")),
        "{commands:?}"
    );
    assert!(
        !commands
            .iter()
            .any(|command| command.contains(char::is_control)),
        "{commands:?}"
    );
    let state: Value = server.place.json("/api/v1/state");
    let command = state["processes"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|process| {
            process["command"]
                .as_str()
                .filter(|command| command.contains("fake_metric"))
        });
    assert!(command.is_some(), "{state}");
    drop(child.stdin.take());
    let _ = std::io::copy(&mut out, &mut std::io::sink());
    child.wait().unwrap();
}

/// A member that [`hostile_commands_break_no_format`] starts.
#[test]
#[ignore = "a part of another test"]
fn member_process() {
    let root = std::env::var("GPULIMIT_ROOT").expect("a root");
    let gpu = std::env::var("GPULIMIT_TEST_GPU").expect("a GPU");
    let root = gpulimit_group::Root::at(root).unwrap();
    let member = gpulimit_group::Member::join(&root, "lab").expect("joined");
    let device = member.device(gpu.parse().unwrap(), 80 * GIB).unwrap();
    charge(&device, GIB);
    println!("joined");
    let _ = std::io::stdin().read_line(&mut String::new());
}

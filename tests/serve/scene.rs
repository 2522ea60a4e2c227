//! One scene, and what each verb and the server say about it, word for word: a change of the
//! controller's structure must leave `fixtures/scene.txt` as it is.
//!
//! `UPDATE=1 cargo nextest run -p gpulimit --test serve scene` writes the file again; its
//! difference is what users see of a change. Times, pids and paths are left out.

use super::rig::{GIB, Rig, charge, refuse};
use super::schema;
use gpulimit_base::units::Size;
use gpulimit_ledger::Category;
use gpulimit_limits::{Key, Selector};
use gpulimit_support::{is_root, repository, skip, text};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// The commands of the scene. `FILE` is a policy with a mistake, `GOOD` one without.
const COMMANDS: &[&str] = &[
    "show",
    "show lab",
    "show --device 1 --sort usage",
    "show --json",
    "show --mine",
    "show nosuch",
    "show --tree",
    "show --tree --json",
    "show --tree nosuch",
    "show --names",
    "show lab --names",
    "show --names --json",
    "show --names nosuch",
    "ps",
    "ps --json",
    "ps --by user",
    "ps --by user --json",
    "ps nosuch",
    "top --once --json",
    "top nosuch --once",
    "events",
    "events --json",
    "events --kind oom",
    "events nosuch",
    "why",
    "why --json",
    "why nosuch",
    "history lab --device 1 --json",
    "history nosuch",
    "report",
    "report --json",
    "report --csv",
    "report --by user --csv",
    "report nosuch",
    "get lab",
    "get lab max",
    "get lab maxx",
    "get nosuch",
    "apply --check FILE",
    "apply --check GOOD",
    "apply --dry-run GOOD",
    "apply --dry-run GOOD --json",
    "create lab",
    "create made max=1G",
    "create json max=1G --json",
    "create bad/../name",
    "set made max=2G high=1G",
    "set made max=soon",
    "set nosuch max=1G",
    "rm lab",
    "rm made",
    "rm json --json",
    "rm nosuch",
    "kill idle",
    "kill nosuch",
    "suspend idle",
    "suspend nosuch",
    "resume idle",
    "resume nosuch",
    "gc",
    "run --group nosuch true",
    "run --max soon true",
    "run --max 1G /nosuch/program",
    "cdi generate --group lab --output -",
    "cdi nosuch",
    "oci-hook nosuch",
    "serve --listen nosuch",
    "install --nosuch",
    "nosuch",
];

/// Commands of the scene whose answers docs/schema.json describes, and the names there.
const SCHEMAS: &[(&str, &str)] = &[
    ("show --json", "show"),
    ("ps --json", "ps"),
    ("ps --by user --json", "ps --by user"),
    ("top --once --json", "top"),
    ("events --json", "events"),
    ("history lab --device 1 --json", "history"),
    ("report --json", "report"),
];

/// Keys of JSON whose numbers depend on the time or on the process.
const UNSTEADY: &[&str] = &[
    "byte_seconds",
    "gib_hours",
    "limit_share",
    "pid",
    "own_pid",
    "host",
];

/// Metrics with such values.
const UNSTEADY_SERIES: &[&str] = &["byte_seconds", "_host_memory_bytes", "_start_time_seconds"];

#[test]
fn every_verb_says_what_it_said() {
    if !is_root() {
        return skip("needs root: the scene has the name of its user");
    }
    let rig = Rig::with(&[("GPULIMIT_SIM_GPUS", "2")]);
    rig.group("lab", Size::Bytes(8 * GIB));
    rig.group("lab/alice", Size::Max);
    rig.group("idle", Size::Bytes(GIB));
    let lab = rig.world.root().group("lab").unwrap();
    lab.write_limits(|limits| limits.set(Selector::All, Key::High, Size::Bytes(6 * GIB)))
        .unwrap();
    let alice = rig.member("lab/alice", 3 * GIB);
    let device = rig.on(&alice);
    device.publish(Category::Linear, 2 * GIB);
    device.publish(Category::Managed, GIB);
    let second = alice.device(rig.gpu(1), 80 * GIB).unwrap();
    charge(&second, GIB);
    refuse(&device, 6 * GIB);
    for (name, policy) in [
        (
            "good",
            "[group.lab]\nmax = \"8G\"\n[group.new]\nmax = \"25%\"\n",
        ),
        ("file", "[group.lab]\nmaxx = \"8G\"\n"),
    ] {
        std::fs::write(rig.world.file(name), policy).unwrap();
    }
    let files = ["FILE", "GOOD"].map(|name| (name, rig.world.file(&name.to_lowercase())));
    let mut scene = String::new();
    for line in COMMANDS {
        let mut typed = (*line).to_owned();
        for (name, path) in &files {
            typed = typed.replace(name, &path.to_string_lossy());
        }
        let arguments: Vec<&str> = typed.split(' ').collect();
        let output = rig.gpulimit(&arguments).output().expect("started");
        let status = output.status.code().expect("a status");
        let _ = writeln!(scene, "$ gpulimit {line} ({status})");
        scene += &steady(&rig, &text(&output.stdout));
        if let Some((_, command)) = SCHEMAS.iter().find(|(known, _)| known == line) {
            let answers = serde_json::Deserializer::from_slice(&output.stdout);
            let answers: Vec<Value> = answers.into_iter().collect::<Result<_, _>>().unwrap();
            assert!(!answers.is_empty(), "{line}");
            answers
                .iter()
                .for_each(|answer| schema::check(command, answer));
        }
        if let Some(error) = text(&output.stderr).lines().next() {
            let _ = writeln!(scene, "! {}", steady(&rig, error).trim_end());
        }
    }
    let server = rig.unix(&["--processes"]);
    for path in ["/metrics", "/api/v1/state", "/nosuch"] {
        let answer = server.place.get(path);
        let _ = writeln!(scene, "GET {path} ({})", answer.status);
        scene += &steady(&rig, &answer.body);
    }
    let file = repository().join("tests/serve/fixtures/scene.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &scene).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    for (number, (there, here)) in expected.lines().zip(scene.lines()).enumerate() {
        assert_eq!(there, here, "{}:{}", file.display(), number + 1);
    }
    assert_eq!(expected.lines().count(), scene.lines().count());
}

/// Returns the text without what differs from run to run.
fn steady(rig: &Rig, said: &str) -> String {
    let folder = rig.world.file("").to_string_lossy().into_owned();
    let build = Path::new(env!("CARGO_BIN_EXE_gpulimit")).parent().unwrap();
    let program = std::env::current_exe().unwrap();
    let program = program.file_name().unwrap().to_string_lossy().into_owned();
    let said = said
        .replace(folder.trim_end_matches('/'), "FOLDER")
        .replace(&*build.to_string_lossy(), "BUILD")
        .replace(&program, "PROGRAM")
        .replace(&program[..16], "PROGRAM")
        .replace(&program[..15], "PROGRAM");
    // A whole text of JSON, or JSON in each line.
    let lines = match serde_json::from_str::<Value>(&said) {
        Ok(value) => pretty(value),
        Err(_) => (said.lines())
            .map(|line| match serde_json::from_str::<Value>(line) {
                Ok(value @ Value::Object(_)) => pretty(value),
                _ => without_times(line),
            })
            .collect::<Vec<_>>()
            .join("\n"),
    };
    match lines.is_empty() {
        true => lines,
        false => lines + "\n",
    }
}

fn pretty(mut value: Value) -> String {
    steady_value(&mut value);
    serde_json::to_string_pretty(&value).expect("JSON")
}

fn steady_value(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match UNSTEADY.contains(&&**key) && value.is_number() {
                    true => *value = 0.into(),
                    false => steady_value(value),
                }
            }
        }
        Value::Array(values) => {
            // All steps of a history have the same keys.
            values.truncate(3);
            values.iter_mut().for_each(steady_value);
        }
        Value::String(text) => *text = without_times(text),
        _ => {}
    }
}

/// Returns the text with `0` for the digits of dates, times, GiB-hours and shares, and without
/// pids, unsteady values of metrics and the space before a line.
fn without_times(text: &str) -> String {
    let mut digits: String = match text.rsplit_once("\"} ") {
        Some((series, _)) if UNSTEADY_SERIES.iter().any(|it| text.contains(it)) => {
            format!("{series}\"}} 0")
        }
        _ => text.into(),
    };
    for form in [
        "0000-00-00T00:00:00.000",
        "0000-00-00",
        "00:00:00",
        "0.000000",
    ] {
        for start in 0..digits.len() {
            let Some(part) = digits.get(start..start + form.len()) else {
                continue;
            };
            let zeros = part.replace(|c: char| c.is_ascii_digit(), "0");
            if zeros == form {
                digits.replace_range(start..start + form.len(), form);
            }
        }
    }
    // The used share of a limit, in a report.
    if let (true, Some(at @ 3..)) = (digits.ends_with(" s"), digits.find('%')) {
        digits.replace_range(at - 3..at, " 00");
    }
    let pid = std::process::id().to_string();
    let words: Vec<&str> = digits
        .trim_start()
        .split_inclusive([' ', '"', ','])
        .collect();
    words
        .iter()
        .map(|word| match word.strip_prefix(&*pid) {
            Some(rest) if !rest.starts_with(|c: char| c.is_alphanumeric()) => format!("PID{rest}"),
            _ => (*word).to_owned(),
        })
        .collect()
}

//! `gpulimit top --machines`: several machines by a stand-in for ssh, which fails in every way.

#[path = "../groups/ssh.rs"]
pub mod ssh;

use crate::place::{GIB, GPU, Nothing, Place, Running, on, text, wait_until};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use serde_json::Value;
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Two machines with groups, of which each is a root of its own.
struct Lab {
    one: Place,
    two: Place,
    path: String,
}

impl Lab {
    /// Makes the machines `lab1` and `lab2`, and others with these scripts. In them, `$own` is the
    /// folder of the test.
    fn new(others: &[(&str, &str)]) -> Self {
        let (one, two) = (Place::new(), Place::new());
        one.group("lab", Size::Bytes(4 * GIB));
        two.group("lab", Size::Bytes(8 * GIB));
        two.group("night", Size::Max);
        let at = |place: &Place| {
            let own = env!("CARGO_BIN_EXE_gpulimit");
            let root = place.root_path();
            let root = root.display();
            format!("shift; GPULIMIT_ROOT={root} exec {own} \"$@\"")
        };
        let mut machines = vec![("lab1", at(&one)), ("lab2", at(&two))];
        let own = format!("own={}; ", one.display());
        machines.extend(
            others
                .iter()
                .map(|(name, script)| (*name, own.clone() + script)),
        );
        let path = ssh::path(&one, &machines);
        Self { one, two, path }
    }

    fn top(&self, arguments: &[&str]) -> Command {
        let mut command = self.one.gpulimit(&["top"]);
        command
            .args(arguments)
            .env("PATH", &self.path)
            .env("GPULIMIT_DEBUG_MACHINE_MS", "60000");
        command
    }

    /// Returns the JSON of one round.
    fn json(&self, machines: &str) -> Value {
        let mut command = self.top(&["--json", "--once", "--machines", machines]);
        let output = command.output().expect("started");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Returns why a machine does not answer.
    #[track_caller]
    fn why(&self, machine: &str) -> String {
        let round = self.json(machine);
        let why = round["machines"][machine].as_str();
        why.unwrap_or_else(|| panic!("{round}")).into()
    }

    #[track_caller]
    fn all_end(&self) {
        wait_until("no command is left", || ssh::count(&self.one).1 == 0);
    }

    /// Starts rounds as JSON, and passes each to `each` until that returns true.
    fn rounds(&self, machines: &str, each: impl Fn(&Value) -> bool) {
        let mut command = self.top(&["--json", "--interval", "0.1", "--machines", machines]);
        let mut child = Running::start(command.stdout(Stdio::piped()));
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let read = |line: std::io::Result<String>| {
            serde_json::from_str::<Value>(&line.expect("a line")).expect("an object")
        };
        assert!(out.lines().map(read).any(|round| each(&round)));
    }
}

#[test]
fn machines_are_one_list_in_the_order_given() {
    let lab = Lab::new(&[]);
    let member = lab.two.member("lab");
    on(&member)
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let round = lab.json("lab2,gone,lab1");
    let machines = round["machines"].to_string();
    let lost = r#"{"lab2":null,"gone":"not reached: Connection refused","lab1":null}"#;
    assert_eq!(machines, lost);
    let groups = round["groups"].as_array().expect("a list");
    let named = |it: &Value| format!("{} {}", it["machine"], it["name"]).replace('"', "");
    let groups: Vec<_> = groups.iter().map(named).collect();
    assert_eq!(groups, ["lab2 lab", "lab2 night", "lab1 lab"]);
    assert_eq!(round["gpus"][0]["machine"], "lab2");
    assert_eq!(round["gpus"][0]["uuid"], GPU.to_string());
    assert_eq!(round["groups"][0]["gpus"][0]["usage"], GIB);
    assert_eq!(round["processes"][0]["machine"], "lab2");
    // A machine that is named twice is shown once.
    let again = lab.json("lab2,lab1,lab2");
    assert_eq!(
        again["machines"].to_string(),
        r#"{"lab2":null,"lab1":null}"#
    );
    assert_eq!(again["groups"].as_array().map(Vec::len), Some(3));
    // As text; the machine that does not answer is a row and makes the status 1.
    let mut command = lab.top(&["--once", "--idle", "--machines", "lab2,gone,lab1"]);
    let output = command.output().expect("started");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for line in [
        "gone: not reached: Connection refused\n",
        "\nlab1    lab ",
        "\nlab2    night ",
    ] {
        assert!(said.contains(line), "no {line:?} in\n{said}");
    }
    lab.all_end();
}

#[test]
fn a_machine_that_does_not_answer_says_why() {
    let lab = Lab::new(&[
        (
            "none",
            "echo \"bash: gpulimit: command not found\" >&2; exit 127",
        ),
        (
            "denied",
            "echo \"alice@denied: Permission denied (publickey).\" >&2; exit 255",
        ),
        (
            "old",
            "echo \"error: unexpected argument '--json'\" >&2; exit 2",
        ),
        ("empty", "exit 0"),
        ("text", "echo Welcome; echo '{\"Ok\": [7]}'; exit 1"),
        (
            "broken",
            "echo '{\"Err\": \"no group\\u001b root\"}'; exec sleep 1000",
        ),
        ("hangs", "exec sleep 1000"),
        ("endless", "exec cat /dev/zero"),
    ]);
    for (machine, why) in [
        ("none", "no gpulimit there"),
        ("denied", "not reached: Permission denied (publickey)."),
        ("old", "its gpulimit is too old for this"),
        ("empty", "its gpulimit has ended: "),
        ("text", "its gpulimit has ended: {\"Ok\": [7]}"),
        ("broken", "no group\u{1b} root"),
        ("endless", "prints a line of more than 16 MiB"),
    ] {
        assert_eq!(lab.why(machine), why, "{machine}");
    }
    // A silent machine delays neither the others nor the end for long.
    let mut command = lab.top(&["--once", "--json", "--machines", "hangs,lab1"]);
    command.env("GPULIMIT_DEBUG_MACHINE_MS", "100");
    let output = command.output().expect("started");
    let round: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(round["machines"]["hangs"], "no answer for 1 s");
    lab.all_end();
}

#[test]
fn a_machine_is_tried_again_and_its_old_figures_are_not_shown() {
    let own = env!("CARGO_BIN_EXE_gpulimit");
    let dies = format!(
        "shift; [ -e $own/up ] || {{ touch $own/up; exit 1; }}; \
         GPULIMIT_ROOT=$own/root {own} top --rounds --once; \
         until [ -e $own/end ]; do sleep 0.1; done; exit 1"
    );
    let lab = Lab::new(&[("dies", &dies)]);
    let is_there = |round: &Value| {
        let (error, groups) = (&round["machines"]["dies"], &round["groups"]);
        let count = groups.as_array().map_or(0, Vec::len);
        // The other machine has a group, too.
        assert_eq!(count, if error.is_null() { 2 } else { 1 }, "{round}");
        error.is_null()
    };
    let was_there = Cell::new(false);
    lab.rounds("lab1,dies", |round| {
        let is_there = is_there(round);
        if is_there && !was_there.replace(true) {
            std::fs::write(lab.one.at("end"), "").expect("written");
        }
        was_there.get() && !is_there
    });
    lab.all_end();
}

#[test]
fn no_command_is_left_however_top_ends() {
    let lab = Lab::new(&[("hangs", "exec sleep 1000")]);
    for (at, signal) in ["TERM", "HUP", "INT", "KILL"].into_iter().enumerate() {
        let machines = ["--batch", "--machines", "lab1,hangs"];
        let child = Running::start(lab.top(&machines).stdout(Stdio::null()));
        wait_until("both are asked", || {
            ssh::count(&lab.one) == (2 * (at + 1), 2)
        });
        let pid = child.id().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(status.expect("started").success());
        lab.all_end();
    }
}

#[test]
fn names_are_no_options_and_no_commands() {
    let lab = Lab::new(&[]);
    for wrong in [
        "-oProxyCommand=touch x",
        "-v",
        "a b",
        "",
        "lab1,,lab2",
        "a\u{1b}b",
        "é",
    ] {
        let error = lab
            .one
            .refused(2, &["top", "--once", &format!("--machines={wrong}")]);
        assert!(
            error.contains("the name of a machine"),
            "{wrong:?}: {error}"
        );
    }
    let odd = "$(touch${IFS}x);`touch${IFS}x`|x";
    assert_eq!(lab.why(odd), "not reached: Connection refused");
    let error = lab.one.refused(2, &["top", "lab", "--machines", "lab1"]);
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn this_machine_is_asked_without_ssh() {
    let lab = Lab::new(&[]);
    let round = lab.json("localhost");
    assert_eq!(round["groups"][0]["machine"], "localhost");
    assert_eq!(ssh::count(&lab.one).0, 0);
}

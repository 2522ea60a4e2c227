//! Help, and messages about wrong arguments.

use crate::place::{Place, text};
use gpulimit_base::units::Size;
use gpulimit_ledger::EventKind;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn help_of_every_verb_has_examples() {
    let place = Place::new();
    for verb in [
        "run",
        "create",
        "set",
        "get",
        "rm",
        "show",
        "ps",
        "top",
        "events",
        "why",
        "history",
        "report",
        "kill",
        "gc",
        "apply",
        "doctor",
        "install",
        "uninstall",
    ] {
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
fn help_fits_a_terminal_of_80_columns() {
    let place = Place::new();
    let help = place.said(&["help"]);
    assert_eq!(help, place.said(&["--help"]));
    assert_eq!(place.said(&["help", "run"]), place.said(&["run", "--help"]));
    let start = help.find("Commands:\n").expect("verbs") + "Commands:\n".len();
    let entries = help[start..].lines().take_while(|line| !line.is_empty());
    let verbs = entries
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    let mut pages = vec![help.clone()];
    pages.extend(
        verbs
            .filter(|verb| *verb != "help")
            .map(|verb| place.said(&[verb, "--help"])),
    );
    assert!(pages.len() > 15, "{help}");
    for page in pages {
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line}\n{page}");
        }
    }
}

#[test]
fn a_verb_of_an_earlier_version_names_its_successor() {
    let place = Place::new();
    for (old, now) in [
        (&["tree", "lab", "--json"][..], "gpulimit show --tree"),
        (&["ls"], "gpulimit show --names"),
        (&["check", "policy.toml"], "gpulimit apply --check"),
        (&["help", "ls"], "gpulimit show --names"),
        (&["man", "run"], "man gpulimit-run"),
        (&["completions", "bash"], "scripts/package tar"),
        (
            &["k8s-device-plugin", "--unit", "1Gi"],
            "gpulimit-k8s-device-plugin",
        ),
    ] {
        let error = place.refused(2, old);
        assert!(
            error.contains(&format!("`{now}`")) && error.lines().count() == 1,
            "{error}"
        );
    }
    let help = place.said(&["--help"]);
    let of_verb = |line: &&str| {
        [
            "tree",
            "ls",
            "check",
            "man",
            "completions",
            "k8s-device-plugin",
        ]
        .contains(&line.trim_start().split(' ').next().unwrap_or_default())
    };
    assert_eq!(help.lines().find(of_verb), None);
}

#[test]
fn mistakes_are_explained() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("lab/alice", Size::Max);
    for (status, arguments, expected, never) in [
        (
            2,
            &["run", "--max", "4G", "--stats", "--", "true"][..],
            "'--stats'",
            "not provided",
        ),
        (
            2,
            &["run", "max=4G", "--stat", "true"],
            "option --stat comes after max=4G",
            "cannot run",
        ),
        (
            2,
            &["kill", "lab", "abc"],
            "expected a pid",
            "invalid digit",
        ),
        (1, &["rm", "nolab"], "no group 'nolab'", "gpulimit create"),
        (1, &["rm", "lba"], "did you mean lab?", "gpulimit create"),
        (
            1,
            &["show", "lab/alcie"],
            "did you mean lab/alice?",
            "gpulimit create",
        ),
        (
            1,
            &["set", "lba", "--max", "4G"],
            "did you mean lab?",
            "'lab'",
        ),
        (
            2,
            &["set", "lab", "oom=kill-group", "--device", "0"],
            "without --device",
            "applied",
        ),
        (2, &["set", "lab"], "nothing to change", "applied"),
        (
            2,
            &["set", "lab", "max=4G", "--max", "5G"],
            "max is given twice",
            "applied",
        ),
    ] {
        // The GPU is given by its full UUID, since no driver reports which GPU is the first.
        let arguments: Vec<&str> = arguments
            .iter()
            .map(|word| match *word {
                "0" => "GPU-1a2b0304-0506-0708-090a-0b0c0d0e0f10",
                word => word,
            })
            .collect();
        let error = place.refused(status, &arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert!(!error.contains(never), "{arguments:?}: {error}");
    }
    assert_eq!(place.said(&["get", "lab", "oom"]), "none\n");
}

#[test]
fn a_change_is_made_even_if_it_cannot_be_printed() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for arguments in [
        &["set", "lab", "--max", "4G"][..],
        &["create", "other", "--max", "4G"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = place.gpulimit(arguments);
        let output = command.stdout(full.expect("opened")).output();
        let output = output.expect("started");
        assert!(output.status.success(), "{output:?}");
        let error = text(&output.stderr);
        assert!(
            error.contains("done, but cannot write to stdout"),
            "{error}"
        );
        assert_eq!(place.said(&["get", arguments[1], "max"]), "4GiB\n");
    }
}

#[test]
fn verbs_that_change_something_answer_in_json() {
    let place = Place::new();
    let text_of = |arguments: &[&str]| {
        let json = place.json(&[arguments, &["--json"]].concat());
        assert_eq!(json["schema"], 1, "{json}");
        let done = json["done"].as_array().expect("a list");
        let entry = |one: &Value| {
            let [name, text] = ["name", "text"].map(|key| one[key].as_str().expect("text"));
            format!("{name}: {text}")
        };
        done.iter().map(entry).collect::<Vec<_>>()
    };
    assert_eq!(
        text_of(&["create", "lab", "--max", "4G"]),
        ["lab: created, max 4GiB"]
    );
    assert_eq!(
        text_of(&["set", "lab", "max=2G"]),
        ["lab: max=2GiB applied to all GPUs"]
    );
    let member = place.member("lab");
    // The member is this process.
    let killed = text_of(&["kill", "--signal", "CONT", "lab"]).join("\n");
    let expected = format!("lab: SIGCONT sent to {} (", std::process::id());
    assert!(killed.starts_with(&expected), "{killed}");
    drop(member);
    assert_eq!(text_of(&["gc"]), [] as [String; 0]);
    place.said(&["create", "lab/alice"]);
    assert_eq!(
        text_of(&["rm", "--recursive", "lab"]),
        ["lab/alice: removed", "lab: removed"]
    );
    for verb in [
        "create",
        "set",
        "rm",
        "kill",
        "suspend",
        "resume",
        "gc",
        "apply",
        "install",
        "uninstall",
        "cdi",
    ] {
        let help = place.said(&[verb, "--help"]);
        assert!(help.contains("--json"), "{verb}: {help}");
    }
}

#[test]
fn mistakes_exit_with_status_2() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["fly"][..], "fly"),
        (&["run", "--max", "4Q", "--", "true"], "invalid size '4Q'"),
        (&["run", "--max", "", "--", "true"], "empty size"),
        (&["run", "--max", "4G"], "COMMAND"),
        (&["run", "--", "true"], "no limit given"),
        (
            &["run", "--max", "4G", "--name", "a/../b", "--", "true"],
            "invalid group name",
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
        (&["show", "a b"], "invalid group name"),
        (&["set", "x", "size=4G"], "unknown key 'size'"),
        (&["set", "x", "mac=4G"], "did you mean max?"),
        (&["set", "x", "max=lots"], "invalid size 'lots'"),
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
        // Only commands that would change or use the group explain how to make it.
        let advised = matches!(arguments[0], "set" | "run");
        assert!(error.contains("did you mean lab? (known: lab)"), "{error}");
        assert_eq!(error.contains("gpulimit create lob"), advised, "{error}");
    }
}

#[test]
fn an_unknown_option_gets_no_wrong_advice() {
    let place = Place::new();
    let error = place.refused(2, &["run", "--stats", "--", "true"]);
    assert!(
        error.contains("'--stat'") && !error.contains("as a value"),
        "{error}"
    );
    let error = place.refused(2, &["show", "--frob"]);
    assert!(!error.contains("tip"), "{error}");
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

#[test]
fn help_names_every_event_and_describes_the_own_verb() {
    let place = Place::new();
    let events = place.said(&["events", "--help"]);
    for (_, name) in EventKind::ALL {
        let line = format!("  {name:<8} ");
        assert!(events.lines().any(|it| it.starts_with(&line)), "{line}");
    }
    let uninstall = place.said(&["uninstall", "--help"]);
    assert!(!uninstall.contains("Copy the library"), "{uninstall}");
}

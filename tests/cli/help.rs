//! Help and mistakes.

use crate::place::{Place, executable, text};
use gpulimit::units::Size;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

#[test]
fn help_of_every_verb_has_examples() {
    let place = Place::new();
    for verb in [
        "run",
        "create",
        "set",
        "get",
        "rm",
        "ls",
        "tree",
        "show",
        "ps",
        "events",
        "kill",
        "gc",
        "apply",
        "check",
        "doctor",
        "install",
        "uninstall",
        "k8s-device-plugin",
        "completions",
        "man",
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
fn a_verb_of_another_program_is_that_program() {
    let place = Place::new();
    let folder = place.0.join("bin");
    fs::create_dir_all(&folder).expect("made");
    // A copy, as the plugin may be beside the controller that cargo has built.
    let gpulimit = folder.join("gpulimit");
    executable::copy(Path::new(env!("CARGO_BIN_EXE_gpulimit")), &gpulimit);
    let run = |path: &str| {
        let mut command = Command::new(&gpulimit);
        command.args(["k8s-device-plugin", "--unit", "a b", "--help"]);
        command.env("PATH", path).output().expect("started")
    };
    let output = run("/nowhere");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("there is no gpulimit-k8s-device-plugin"),
        "{error}"
    );
    let plugin = folder.join("gpulimit-k8s-device-plugin");
    executable::script(&plugin, "#!/bin/sh\necho \"$#: $*\"\nexit 7\n");
    let output = run("/nowhere");
    assert_eq!(text(&output.stdout), "3: --unit a b --help\n");
    assert_eq!(output.status.code(), Some(7));
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

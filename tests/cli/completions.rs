//! `completions`

use crate::place::{Place, Running, have, set_environment, text};
use gpulimit_base::units::Size;
use std::io::Write;
use std::process::{Command, Stdio};

const VERBS: [&str; 11] = [
    "run", "create", "set", "get", "rm", "show", "ps", "events", "kill", "gc", "doctor",
];

/// Returns what bash offers for a command line.
fn offered(place: &Place, words: &[&str]) -> String {
    let script = place.said(&["completions", "bash"]);
    let line = words.join(" ");
    let ask = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; COMP_LINE='{line}'; COMP_POINT={}\n\
         _gpulimit_with_groups gpulimit '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words
            .iter()
            .map(|word| format!("'{word}' "))
            .collect::<String>(),
        words.len() - 1,
        line.len(),
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let binary = place.gpulimit(&[]);
    let folder = std::path::Path::new(binary.get_program())
        .parent()
        .expect("in a folder");
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").expect("set")
    );
    let mut bash = Command::new("bash");
    set_environment(bash.args(["--norc", "-s"]), &binary);
    bash.env("PATH", path).stdin(Stdio::piped());
    let mut bash = Running::start(bash.stdout(Stdio::piped()));
    let input = bash.stdin.as_mut().expect("piped");
    input.write_all(ask.as_bytes()).expect("written");
    let output = bash.ended();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn bash_offers_only_words_that_fit() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let all = |words: &[&str]| {
        offered(&place, words)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let keys = "max= high= low= min= on_limit= wait_timeout= pressure_timeout= oom= count_context= \
                suspended.max=";
    let keys: Vec<&str> = keys.split(' ').collect();
    assert_eq!(all(&["gpulimit", "set", ""]), ["lab"]);
    assert_eq!(all(&["gpulimit", "set", "lab", ""]), keys);
    assert_eq!(all(&["gpulimit", "set", "--device", "0", "lab", ""]), keys);
    assert_eq!(
        all(&["gpulimit", "create", "new", "o"]),
        ["on_limit=", "oom="]
    );
    assert_eq!(all(&["gpulimit", "get", "lab", "o"]), ["on_limit", "oom"]);
    // The value of --watch is a part of its word, so a group can follow.
    assert_eq!(all(&["gpulimit", "show", "--watch", ""]), ["lab"]);
    // bash splits KEY=VALUE into three words.
    let values = ["none", "kill-largest", "kill-group"];
    assert_eq!(all(&["gpulimit", "set", "lab", "oom", "="]), values);
    assert_eq!(all(&["gpulimit", "set", "lab", "oom", "=", "n"]), ["none"]);
    assert_eq!(
        all(&["gpulimit", "set", "lab", "on_limit", "=", ""]),
        ["fail", "wait"]
    );
    assert!(all(&["gpulimit", "set", "lab", "max", "="]).is_empty());
    assert_eq!(all(&["gpulimit", "rm", "--force", "l"]), ["lab"]);
    assert!(all(&["gpulimit", "kill", "lab", ""]).is_empty());
}

#[test]
fn bash_offers_files_for_the_command_of_run() {
    let place = Place::new();
    let all = |words: &[&str]| {
        offered(&place, words)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let command = |words: &[&str]| all(words).contains(&"unshare".to_owned());
    assert!(command(&["gpulimit", "run", "unsh"]));
    assert!(command(&["gpulimit", "run", "--max", "4G", "--", "unsh"]));
    assert!(command(&[
        "gpulimit", "run", "--stat", "--max", "=", "4G", "unsh"
    ]));
    // The completion offers no words of its own, so bash offers files.
    for words in [
        &["gpulimit", "run", "--max", "4G", "--", "python", ""][..],
        &["gpulimit", "run", "--", "python", "--"],
        &["gpulimit", "run", "python", "--max", ""],
        &["gpulimit", "run", "--max", "4G", "--", "./a"],
    ] {
        assert!(all(words).is_empty(), "{words:?}: {:?}", all(words));
    }
    let options = all(&["gpulimit", "run", "--max", "4G", "--n"]);
    assert_eq!(options, ["--name"]);
}

#[test]
fn bash_offers_verbs_options_and_groups() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("lab/alice", Size::Max);
    let verbs = offered(&place, &["gpulimit", ""]);
    for verb in VERBS {
        assert!(verbs.lines().any(|line| line == verb), "{verb}: {verbs}");
    }
    assert!(!verbs.contains("__probe"), "{verbs}");
    assert!(offered(&place, &["gpulimit", "run", "--"]).contains("--stat"));
    let groups = |words: &[&str]| {
        let out = offered(&place, words);
        let lines = out.lines().filter(|line| line.starts_with("lab"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(groups(&["gpulimit", "show", ""]), ["lab", "lab/alice"]);
    assert_eq!(groups(&["gpulimit", "rm", "lab/"]), ["lab/alice"]);
    assert_eq!(
        groups(&["gpulimit", "run", "--group", "l"]),
        ["lab", "lab/alice"]
    );
    assert!(groups(&["gpulimit", "create", "l"]).is_empty());
    assert!(groups(&["gpulimit", "show", "-"]).is_empty());
}

#[test]
fn scripts_of_all_shells_offer_commands_and_groups() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.said(&["completions", shell]);
        for verb in VERBS {
            assert!(script.contains(verb), "{shell} {verb}");
        }
        assert!(script.contains("gpulimit show --names"), "{shell}");
    }
    let zsh = place.said(&["completions", "zsh"]);
    assert!(zsh.starts_with("#compdef gpulimit\n"), "{zsh}");
    assert!(
        zsh.contains("':group -- The group:_gpulimit_groups'"),
        "{zsh}"
    );
    place.refused(2, &["completions", "csh"]);
}

#[test]
fn shells_accept_their_scripts() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        if !have(shell) {
            continue;
        }
        let path = place.write(shell, &place.said(&["completions", shell]));
        let output = Command::new(shell).arg("-n").arg(&path).output();
        let output = output.expect("started");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{shell}: {output:?}"
        );
    }
}

#[test]
fn hidden_options_are_not_offered() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.said(&["completions", shell]);
        assert!(!script.contains("preloaded") && script.contains("container"));
    }
}

//! Every verb has a page, and shells complete what they should.

use super::{command, completions, write};
use gpulimit_support::{Running, Scratch, have, text};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

const VERBS: [&str; 11] = [
    "run", "create", "set", "get", "rm", "show", "ps", "events", "kill", "gc", "doctor",
];

fn script(shell: &str) -> String {
    let mut scripts = completions::scripts().into_iter();
    let found = scripts.find(|(name, _)| *name == shell);
    found.expect("a shell").1
}

#[test]
fn no_line_of_help_is_too_long_for_a_narrow_terminal() {
    for verb in command().get_subcommands() {
        let mut after = verb.clone();
        after.build();
        let after = after.get_after_help().map(ToString::to_string);
        let after = after.unwrap_or_default();
        let long = after.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{}", verb.get_name());
    }
}

/// Returns what bash offers for a command line, where groups have these names.
fn offered(words: &[&str]) -> String {
    let script = script("bash");
    let line = words.join(" ");
    let ask = format!(
        "gpulimit() {{ printf 'lab\\nlab/alice\\n'; }}\n{script}\n\
         COMP_WORDS=({}); COMP_CWORD={}; COMP_LINE='{line}'; COMP_POINT={}\n\
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
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-s"]).stdin(Stdio::piped());
    let mut bash = Running::start(bash.stdout(Stdio::piped()));
    let input = bash.stdin.as_mut().expect("piped");
    input.write_all(ask.as_bytes()).expect("written");
    let output = bash.ended();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn bash_offers_only_words_that_fit() {
    let all = |words: &[&str]| {
        offered(words)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let keys = "max= high= low= min= keep_free= on_limit= wait_timeout= pressure_timeout= oom= \
                count_context= suspended.max=";
    let keys: Vec<&str> = keys.split(' ').collect();
    assert_eq!(all(&["gpulimit", "set", ""]), ["lab", "lab/alice"]);
    assert_eq!(all(&["gpulimit", "set", "lab", ""]), keys);
    assert_eq!(all(&["gpulimit", "set", "--device", "0", "lab", ""]), keys);
    assert_eq!(
        all(&["gpulimit", "create", "new", "o"]),
        ["on_limit=", "oom="]
    );
    assert_eq!(all(&["gpulimit", "get", "lab", "o"]), ["on_limit", "oom"]);
    // The value of --watch is a part of its word, so a group can follow.
    assert_eq!(
        all(&["gpulimit", "show", "--watch", ""]),
        ["lab", "lab/alice"]
    );
    // bash splits KEY=VALUE into three words.
    let values = ["none", "kill-largest", "kill-group"];
    assert_eq!(all(&["gpulimit", "set", "lab", "oom", "="]), values);
    assert_eq!(all(&["gpulimit", "set", "lab", "oom", "=", "n"]), ["none"]);
    assert_eq!(
        all(&["gpulimit", "set", "lab", "on_limit", "=", ""]),
        ["fail", "wait"]
    );
    assert!(all(&["gpulimit", "set", "lab", "max", "="]).is_empty());
    assert_eq!(all(&["gpulimit", "rm", "--force", "lab/"]), ["lab/alice"]);
    assert!(all(&["gpulimit", "kill", "lab", ""]).is_empty());
}

#[test]
fn bash_offers_files_for_the_command_of_run() {
    let all = |words: &[&str]| {
        offered(words)
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
    let verbs = offered(&["gpulimit", ""]);
    for verb in VERBS {
        assert!(verbs.lines().any(|line| line == verb), "{verb}: {verbs}");
    }
    assert!(!verbs.contains("__probe"), "{verbs}");
    assert!(offered(&["gpulimit", "run", "--"]).contains("--stat"));
    let groups = |words: &[&str]| {
        let out = offered(words);
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
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        for verb in VERBS {
            assert!(script.contains(verb), "{shell} {verb}");
        }
        assert!(script.contains("gpulimit show --names"), "{shell}");
    }
    let zsh = script("zsh");
    assert!(zsh.starts_with("#compdef gpulimit\n"), "{zsh}");
    assert!(
        zsh.contains("':group -- The group:_gpulimit_groups'"),
        "{zsh}"
    );
}

#[test]
fn hidden_options_are_not_offered() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        assert!(!script.contains("preloaded") && script.contains("container"));
    }
}

#[test]
fn pages_and_scripts_are_written() {
    let scratch = Scratch::new();
    let mut folder = scratch.0.clone();
    // scripts/package asks for the files.
    if let Some(wanted) = std::env::var_os("GPULIMIT_PAGES") {
        folder = wanted.into();
    }
    write(&folder).expect("written");
    for shell in ["bash", "zsh", "fish"] {
        let path = folder.join(shell);
        if !have(shell) {
            continue;
        }
        let output = Command::new(shell).arg("-n").arg(&path).output();
        let output = output.expect("started");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{shell}: {output:?}"
        );
    }
    let folder = folder.join("man1");
    let command = command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs: Vec<&str> = verbs.map(|verb| verb.get_name()).collect();
    assert!(verbs.len() >= 13, "{verbs:?}");
    let first = fs::read_to_string(folder.join("gpulimit.1")).expect("a page");
    for verb in &verbs {
        assert!(
            first.contains(&format!("gpulimit\\-{}", verb.replace('-', "\\-"))),
            "{verb}: {first}"
        );
        let page = fs::read_to_string(folder.join(format!("gpulimit-{verb}.1"))).expect("a page");
        // clap writes OPTIONS for commands that have options, and every command has --help.
        for head in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "\"EXIT STATUS\"",
            "ENVIRONMENT",
            "FILES",
            "EXAMPLES",
        ] {
            let line = format!(".SH {head}");
            let count = page.lines().filter(|there| *there == line).count();
            assert_eq!(count, 1, "{verb}: {head}\n{page}");
        }
        assert!(!page.contains(".SH NOTES"), "{page}");
    }
    assert_eq!(
        fs::read_dir(&folder).expect("listed").count(),
        verbs.len() + 1
    );
    assert!(!first.contains("help(1)"), "there is no such page: {first}");
    if !have("groff") {
        return;
    }
    for entry in fs::read_dir(&folder).expect("listed") {
        let path = entry.expect("listed").path();
        let output = Command::new("groff")
            .args(["-ww", "-man", "-Tutf8", "-rLL=80n", "-P-cbou"])
            .arg(&path)
            .output()
            .expect("groff");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{}: {output:?}",
            path.display()
        );
        for line in text(&output.stdout).lines() {
            let width = line.chars().count();
            assert!(width <= 80, "{}: {line}", path.display());
        }
    }
}

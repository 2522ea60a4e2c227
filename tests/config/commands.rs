//! The controller accepts every command line in the files of `config/` and in their pages.

use crate::place::{GPULIMIT, Place, read, repository, text};
use gpulimit_support::clean;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// Returns the files of a folder and its subfolders, by their paths in the repository.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository(folder)).expect(folder) {
        let entry = entry.expect(folder);
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Returns the controller's command lines in a file, from the command on: those that systemd runs,
/// code blocks of pages, and commands quoted in comments.
fn commands(path: &str) -> Vec<Vec<String>> {
    let text = read(path);
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            code = !code;
            continue;
        }
        let unit = line.starts_with("Exec");
        let mut quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        if unit || (path.ends_with(".md") && code) {
            quoted.push(line);
        }
        if let Some((_, command)) = line.split_once(": gpulimit ") {
            // A comment may contain `for: gpulimit create …, or a policy.`
            quoted.push(&line[line.len() - command.len() - "gpulimit ".len()..]);
        }
        for command in quoted {
            // Up to the end of the command, or to what the page says of it.
            let end = [',', '#', '…', '|', ';', '&', '>'];
            let command = command.split(end).next().unwrap_or_default();
            let mut words = command.split_whitespace().peekable();
            // Prefixes of systemd, and other programs with their options, may precede the
            // controller.
            let is_controller = |word: &str| word == "gpulimit" || word.ends_with("/gpulimit");
            let before: Vec<_> = words
                .by_ref()
                .take_while(|word| !is_controller(word))
                .collect();
            let foreign = before
                .iter()
                .any(|word| ["install", "journalctl", "kubectl"].contains(word));
            let arguments: Vec<String> = words.map(str::to_owned).collect();
            let verb = arguments.first().is_some_and(|verb| {
                verb.bytes().all(|c| c.is_ascii_lowercase()) && verb != "in" && verb != "tells"
            });
            if verb && !foreign {
                found.push(arguments);
            }
        }
    }
    found
}

/// The pages for people who use gpulimit.
fn pages() -> Vec<String> {
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "config/README.md",
        "examples/README.md",
    ];
    let docs = files("docs");
    docs.into_iter()
        .filter(|path| path.ends_with(".md") && !path.starts_with("docs/internals/"))
        .chain(others.map(str::to_owned))
        .collect()
}

#[test]
fn the_controller_takes_every_command() {
    let folders = ["config/systemd", "config/login", "config/slurm"];
    let paths = folders.into_iter().flat_map(files).chain(pages());
    // Many commands are on several pages.
    let mut all = BTreeMap::new();
    for path in paths {
        for arguments in commands(&path) {
            // systemd writes a percent sign as two.
            let plain = arguments
                .iter()
                .map(|word| word.replace("%%", "%").replace("$!", "4711"));
            all.insert(plain.collect::<Vec<_>>(), path.clone());
        }
    }
    let mut wrong = Vec::new();
    for (arguments, path) in &all {
        // `--help` makes the parser check all options before it.
        let (own, rest) = match arguments.iter().position(|word| word == "--") {
            Some(end) => arguments.split_at(end),
            None => (&arguments[..], &[][..]),
        };
        let mut command = Command::new(GPULIMIT);
        clean(command.args(own).arg("--help").args(rest));
        let output = command.output().expect("started");
        if !output.status.success() {
            let said = text(&output.stderr);
            let said = said.lines().next().unwrap_or_default();
            wrong.push(format!("{path}: gpulimit {}: {said}", arguments.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(all.len() >= 100, "{} commands were found", all.len());
}

#[test]
fn policies_in_the_pages_are_valid() {
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        let blocks = text.split("```").skip(1).step_by(2);
        for block in blocks.filter(|block| block.contains("[[rule]]")) {
            let policy = block.strip_prefix("toml").unwrap_or(block);
            let place = Place::new();
            let file = place.write("policy.toml", policy);
            let output = place.gpulimit(&["apply", "--check", file.to_str().expect("UTF-8")]);
            assert!(output.status.success(), "{page}: {policy}: {output:?}");
            count += 1;
        }
    }
    assert!(count >= 4, "{count} policies were found");
}

#[test]
fn a_wrong_command_is_noticed() {
    let output = Place::new().gpulimit(&["create", "lab", "--onwer", "alice", "--help"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

//! `man`

use crate::place::{Place, have, text};
use std::fs;
use std::process::Command;

#[test]
fn every_command_has_a_page() {
    let place = Place::new();
    let folder = place.0.join("man/man1");
    place.said(&["man", &folder.display().to_string()]);
    let help = place.said(&["--help"]);
    let start = help.find("Commands:\n").expect("verbs") + "Commands:\n".len();
    let verbs: Vec<&str> = help[start..]
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(
        verbs.contains(&"completions") && verbs.contains(&"man"),
        "{verbs:?}"
    );
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

#[test]
fn the_first_page_and_that_of_a_verb_go_to_standard_output() {
    let place = Place::new();
    let page = place.said(&["man"]);
    assert!(page.contains(".TH gpulimit 1"), "{page}");
    let page = place.said(&["man", "run"]);
    assert!(page.contains(".TH gpulimit-run 1"), "{page}");
    let error = place.refused(1, &["man", "/proc/nowhere"]);
    assert!(
        error.contains("cannot write manual pages to /proc/nowhere"),
        "{error}"
    );
}

#[test]
fn a_mistyped_verb_makes_no_directory() {
    let place = Place::new();
    let error = place.refused(2, &["man", "shwo"]);
    assert!(error.contains("no verb and no directory 'shwo'"), "{error}");
    place.refused(2, &["man", "shwo\x1b"]);
}

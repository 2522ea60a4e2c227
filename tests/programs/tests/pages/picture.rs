//! The picture of the README shows a recorded run, and what this version prints.

use std::fs;
use std::process::Command;

use serde_json::Value;

use gpulimit_programs::world::{self, World, finish, repository, text};

#[test]
fn the_picture_is_drawn_from_the_recorded_run() {
    let mut command = Command::new(repository().join("scripts/picture"));
    command.arg("--check");
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Returns the words of a line of gpulimit that do not differ between programs and machines.
fn form(line: &str) -> Vec<&str> {
    let differs = |word: &&str| word.contains(|c: char| c.is_ascii_digit() || c == '(');
    let before = line.split(": allocations").next().expect("text");
    let before = before.split(": pools").next().expect("text");
    let words = before.split_whitespace();
    words
        .filter(|word| !differs(word) && !word.starts_with("cuMem"))
        .collect()
}

/// A program that is refused on the simulated driver gets the lines of the recorded one.
#[test]
fn the_recorded_lines_are_those_of_this_version() {
    let record = repository().join("tests/gpu/picture.json");
    let record = fs::read_to_string(record).expect("tests/gpu/picture.json");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    let lines = record["lines"].as_array().expect("lines").iter();
    let recorded = lines.filter_map(|line| line.as_str()?.strip_prefix("right| "));
    let mut recorded: Vec<Vec<&str>> = recorded
        .filter(|line| line.starts_with("gpulimit: "))
        .map(form)
        .collect();
    recorded.dedup();
    let world = World::without_group(&[]);
    let mut command = world.bare(&world::controller());
    command
        .args(["run", "--max", "4G", "--"])
        .arg(world::demo());
    command.args(["1G", "1G", "1G", "1G"]);
    command.env("GPULIMIT_LIBRARY", world::shim());
    let output = finish(command);
    let printed = text(&output.stderr);
    let mut printed: Vec<Vec<&str>> = printed.lines().map(form).collect();
    printed.dedup();
    assert!(
        printed == recorded,
        "run the GPU check `picture` and scripts/picture again: {printed:#?} {recorded:#?}"
    );
}

//! Rules that keep tests from failing, or passing, by chance (tests/README.md).

use super::{code, files, none, read, root};
use std::collections::BTreeMap;
use std::fs;

/// Returns the text of a file that is code of tests: all of it, or its module of unit tests.
/// `tests/support` has what these rules forbid elsewhere.
fn test_code(path: &str) -> Option<String> {
    let is_code = [".rs", ".py", ".sh"].iter().any(|end| path.ends_with(end));
    if !is_code || path.starts_with("tests/support/") {
        return None;
    }
    let text = fs::read_to_string(root().join(path)).ok()?;
    let is_test = path.starts_with("tests/") || path.contains("/tests/");
    if is_test || path.ends_with("/tests.rs") {
        return Some(text);
    }
    let (_, tests) = text.split_once("\nmod tests {")?;
    Some(tests.to_owned())
}

/// Returns whether the code reads a clock or pauses.
fn uses_time(path: &str, text: &str) -> bool {
    let rust = ["thread::sleep", "time::sleep", "Instant::now", ".elapsed()"];
    // Also in programs that a test has as text.
    let python = ["sleep", "monotonic"].map(|name| format!("time.{name}"));
    text.lines().any(|line| {
        let line_of_code = code(line);
        let is_rust = path.ends_with(".rs");
        is_rust && rust.iter().any(|name| line_of_code.contains(name))
            || python.iter().any(|name| line.contains(name))
    })
}

#[test]
fn tests_that_read_a_clock_or_pause_say_why() {
    let list = read("tests/times.txt");
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let (path, reason) = line.split_once(": ").expect("PATH: REASON");
        assert!(!reason.trim().is_empty(), "{line}");
        path.to_owned()
    };
    let mut listed: BTreeMap<String, bool> = lines.map(|text| (line(text), false)).collect();
    let mut unlisted = Vec::new();
    for path in files() {
        if !test_code(&path).is_some_and(|text| uses_time(&path, &text)) {
            continue;
        }
        let covers = |entry: &str| entry == path || entry.ends_with('/') && path.starts_with(entry);
        match listed.iter_mut().find(|(entry, _)| covers(entry)) {
            Some((_, is_needed)) => *is_needed = true,
            None => unlisted.push(path),
        }
    }
    none(
        "tests with clocks or pauses that tests/times.txt does not list (wait for an event by \
         gpulimit_support::wait_until instead)",
        &unlisted,
    );
    listed.retain(|_, is_needed| !*is_needed);
    let unneeded: Vec<_> = listed.into_keys().collect();
    none("lines of tests/times.txt that are not needed", &unneeded);
}

/// Returns the statements of a text that make a path or a name of this process's pid.
fn names_by_pid(text: &str) -> Vec<String> {
    let paths = ["temp_dir(", "join(", "with_extension(", "with_file_name("];
    let is_name = |statement: &str| {
        let is_path = paths.iter().any(|part| statement.contains(part));
        is_path && !statement.contains("/proc") || statement.contains("format!(\"gpu")
    };
    let plain = |statement: &str| statement.split_whitespace().collect::<Vec<_>>().join(" ");
    let statements = text
        .split(';')
        .filter(|text| text.contains("process::id()"));
    statements.filter(|text| is_name(text)).map(plain).collect()
}

#[test]
fn tests_make_no_names_of_their_pid() {
    let mut found = Vec::new();
    for path in files() {
        let text = test_code(&path).unwrap_or_default();
        let names = names_by_pid(&text).into_iter();
        found.extend(names.map(|name| format!("{path}: {name}")));
    }
    none(
        "names made of a pid, which comes again (use gpulimit_support::Scratch)",
        &found,
    );
}

#[test]
fn names_by_pid_are_told_from_other_texts() {
    for (text, count) in [
        ("let at = folder.join(format!(\"{}\",\n process::id()))", 1),
        ("name(format!(\"gpulimit-{}\", std::process::id()))", 1),
        ("assert_eq!(pid, std::process::id())", 0),
        ("Path::new(\"/proc\").join(process::id().to_string())", 0),
        ("f(process::id()); folder.join(name)", 0),
    ] {
        assert_eq!(names_by_pid(text).len(), count, "{text}");
    }
}

#[test]
fn tests_are_skipped_only_through_the_support_crate() {
    let marks = [["SKIP", "PED"].concat(), ["\"skip", "ped"].concat()];
    let mut found = Vec::new();
    for path in files() {
        let text = test_code(&path).unwrap_or_default();
        let lines = text.lines().enumerate();
        let skips = lines.filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
        found.extend(skips.map(|(number, _)| format!("{path}:{}", number + 1)));
    }
    none(
        "messages of skipped tests (use gpulimit_support::skip)",
        &found,
    );
}

//! Every function of the driver, also in the newest headers and drivers, is hooked or has a reason
//! not to be (docs/internals/unhooked.md).
#![allow(clippy::unwrap_used, reason = "a test that reads files")]

use gpulimit_support::{fetch, skip};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the names in backticks in the first column of a page's tables.
fn first_column(page: &str) -> BTreeSet<String> {
    let text = read(page);
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let column = rows.map(|row| row.split('|').nth(1).unwrap().to_owned());
    column
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Returns a name without the ending of the twins for the per-thread default stream.
fn plain(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    name.strip_suffix("_ptds").unwrap_or(name)
}

/// Returns the functions that the headers declare and the driver libraries export.
fn functions() -> BTreeSet<String> {
    fetch("wheels");
    fetch("drivers");
    let folders = |folder: &str| {
        let found = fs::read_dir(root().join(folder)).into_iter().flatten();
        found
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    let mut names = BTreeSet::new();
    for header in folders(".cache/headers")
        .iter()
        .map(|folder| folder.join("cuda.h"))
    {
        let text = fs::read_to_string(header).unwrap_or_default();
        for declaration in text.split("CUDAAPI").skip(1) {
            let name = declaration
                .trim_start()
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next()
                .unwrap();
            names.insert(plain(name).to_owned());
        }
    }
    for library in folders(".cache/drivers")
        .iter()
        .map(|folder| folder.join("libcuda.so.1"))
    {
        let listed = Command::new("nm")
            .args(["-D", "--defined-only", "--format=posix"])
            .arg(library)
            .output()
            .expect("nm");
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            names.insert(plain(line.split([' ', '@']).next().unwrap()).to_owned());
        }
    }
    names.retain(|name| name.starts_with("cu"));
    names
}

#[test]
fn every_function_is_hooked_or_has_a_reason_not_to_be() {
    let functions = functions();
    if functions.is_empty() {
        skip("no headers and driver libraries are there (scripts/wheels, scripts/drivers)");
        return;
    }
    assert!(functions.len() > 500, "{}", functions.len());
    let hooked: BTreeSet<String> = first_column("docs/internals/hooks.md")
        .iter()
        .map(|name| plain(name).to_owned())
        .collect();
    let reasons = first_column("docs/internals/unhooked.md");
    let matches = |reason: &str, name: &str| match reason.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == reason,
    };
    let mut wrong = Vec::new();
    for name in &functions {
        let excused = reasons.iter().any(|reason| matches(reason, name));
        match (hooked.contains(name), excused) {
            (false, false) => wrong.push(format!(
                "{name} is neither hooked nor in docs/internals/unhooked.md"
            )),
            // A reason by prefix may cover hooked functions, but not a reason by full name.
            (true, _) if reasons.contains(name) => wrong.push(format!(
                "{name} is hooked and in docs/internals/unhooked.md"
            )),
            _ => {}
        }
    }
    for reason in &reasons {
        if !functions.iter().any(|name| matches(reason, name)) {
            wrong.push(format!(
                "docs/internals/unhooked.md names {reason}, which no driver has"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

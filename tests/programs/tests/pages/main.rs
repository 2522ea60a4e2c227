//! Runs the commands of the pages on the simulated driver, and compares their output with the
//! pages. See tests/README.md.

mod compare;
mod json;
mod machine;
mod page;
mod picture;

use machine::Machine;
use page::{Block, Page};
use std::collections::BTreeMap;
use std::fs;

use gpulimit_programs::world::repository;

/// The pages with commands to type that are not in `docs`.
const OTHERS: [&str; 5] = [
    "README.md",
    "CONTRIBUTING.md",
    "config/README.md",
    "examples/README.md",
    "benches/README.md",
];

/// The pages of `docs` for people who use gpulimit, and [`OTHERS`], by their paths in the
/// repository.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(repository().join("docs")).expect("docs");
    let names = entries.map(|entry| entry.expect("docs").file_name());
    let mut pages: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .chain(OTHERS.map(str::to_owned))
        .collect();
    pages.sort();
    pages
}

/// Runs the marked blocks of a page in order, those of each mark on a machine of their own. Returns
/// the number of commands, 0 also where no machine can be had.
#[track_caller]
fn follow(path: &str) -> usize {
    let page = Page::read(path);
    let mut machines: BTreeMap<&str, Machine> = BTreeMap::new();
    let mut count = 0;
    for block in page.blocks() {
        let (Block::Run { on, .. } | Block::File { on, .. }) = block else {
            continue;
        };
        if !machines.contains_key(on.as_str()) {
            let Some(machine) = Machine::new(on) else {
                return 0;
            };
            machines.insert(on, machine);
        }
        let machine = machines.get_mut(on.as_str()).expect("there");
        count += machine.follow(path, block);
    }
    count
}

/// Asserts that a page was followed and has at least so many commands, or that no machine can be
/// had here.
#[track_caller]
fn follows(path: &str, least: usize) {
    let count = follow(path);
    assert!(count == 0 || count >= least, "{path}: {count} commands");
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let mut silent = Vec::new();
    for path in pages() {
        for block in Page::read(&path).blocks() {
            if let Block::Unmarked { line } = block {
                silent.push(format!("{path}:{line}"));
            }
        }
    }
    assert!(
        silent.is_empty(),
        "neither run nor said why not: {silent:#?}"
    );
}

/// Tests that are skipped where there is no Slurm or no container engine take their commands from
/// these pages.
#[test]
fn pages_have_what_other_tests_take_from_them() {
    let wanted = [
        ("docs/slurm.md", "**On each node**"),
        ("docs/slurm.md", "**What a shard is worth**"),
        ("docs/slurm.md", "**Slurm's own"),
        (
            "docs/containers.md",
            "gpulimit cdi generate --cap 4g --cap 8g",
        ),
        (
            "docs/containers.md",
            "podman run --device nvidia.com/gpu=all",
        ),
    ];
    for (path, start) in wanted {
        let page = fs::read_to_string(repository().join(path)).expect(path);
        let found = page.lines().any(|line| line.starts_with(start));
        assert!(found, "{path}: no line begins with {start:?}");
    }
}

#[test]
fn the_readme() {
    follows("README.md", 3);
}

#[test]
fn the_page_for_workstations() {
    follows("docs/workstation.md", 10);
}

#[test]
fn the_page_for_lab_servers() {
    follows("docs/lab-server.md", 10);
}

#[test]
fn the_page_about_out_of_memory() {
    follows("docs/out-of-memory.md", 20);
}

#[test]
fn the_other_pages() {
    let own = [
        "README.md",
        "docs/workstation.md",
        "docs/lab-server.md",
        "docs/out-of-memory.md",
    ];
    let pages = pages();
    let others = pages.iter().filter(|path| !own.contains(&path.as_str()));
    let counts: Vec<(&String, usize)> = others.map(|path| (path, follow(path))).collect();
    let count: usize = counts.iter().map(|(_, count)| count).sum();
    assert!(count == 0 || count >= 4, "{counts:?}");
}

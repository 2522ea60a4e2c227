//! The modules at the top of the preloaded library depend on each other in one direction only.
//!
//! A room is a file of `shim/src` with the folder of the same name. The dependencies of a file are
//! read from the paths in its code, with or without `use`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{code, none, read, sources};

/// The rooms from the bottom to the top: a room may use those before it, and none after it.
const ROOMS: [&str; 14] = [
    // Every room may use these.
    "unwind",
    "table",
    "fault",
    "clock",
    "message",
    "membership",
    "refusal",
    // The types of CUDA, and the contents of code images.
    "abi",
    "image",
    // The path of a call, from its end to its beginning.
    "driver",
    "account",
    "handler",
    "hook",
    "entry",
];

/// Rooms with files that use each other; in all other rooms dependencies have no cycle.
const TURNING: [&str; 2] = ["account", "entry"];

/// `["account", "pools", "lent"]` for `shim/src/account/pools/lent.rs`.
pub type Module = Vec<String>;

/// The modules that each module uses.
pub type Known = BTreeMap<Module, BTreeSet<Module>>;

fn module(folder: &str, path: &str) -> Option<Module> {
    let name = path.strip_prefix(folder)?.strip_suffix(".rs")?;
    Some(name.split('/').map(str::to_owned).collect())
}

/// Adds the paths of a `use` tree such as `a::{b, c::d}` below `front`. Returns the text after the
/// tree.
fn tree<'a>(mut text: &'a str, front: &[&'a str], paths: &mut Vec<Vec<&'a str>>) -> &'a str {
    let mut path = front.to_vec();
    loop {
        text = text.trim_start();
        if let Some(mut list) = text.strip_prefix('{') {
            while !list.trim_start().starts_with('}') && !list.is_empty() {
                list = tree(list, &path, paths);
                // Skips `as name` up to the next path.
                list = &list[list.find([',', '}']).unwrap_or(list.len())..];
                list = list.strip_prefix(',').unwrap_or(list);
            }
            return list.trim_start().strip_prefix('}').unwrap_or(list);
        }
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
        path.push(&text[..end]);
        text = &text[end..];
        match text.trim_start().strip_prefix("::") {
            Some(rest) => text = rest,
            None => break,
        }
    }
    paths.push(path);
    text
}

/// Returns all paths in the text that may name modules.
fn paths(mut text: &str) -> Vec<Vec<&str>> {
    let mut paths = Vec::new();
    while let Some(start) = text.find(|c: char| c.is_alphabetic() || c == '_') {
        text = &text[start..];
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
        text = match text[end..].starts_with("::") {
            true => tree(text, &[], &mut paths),
            false => &text[end..],
        };
    }
    paths
}

/// Returns the module that a path in `here` names or leads into.
fn target(path: &[&str], here: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let mut to: Vec<String> = Vec::new();
    let mut rest = path;
    match *path.first()? {
        // A glob import of `super` occurs in an inner module of the same file.
        "super" if path[1..] == [""] => return None,
        "crate" => rest = &path[1..],
        "super" => {
            let above = path.iter().take_while(|part| **part == "super").count();
            to = here[..here.len().checked_sub(above)?].to_vec();
            rest = &path[above..];
        }
        child => {
            to = here.to_vec();
            rest = if child == "self" { &path[1..] } else { rest };
            let first = to.iter().cloned().chain([rest.first()?.to_string()]);
            if !modules.contains(&first.collect::<Module>()) {
                return None;
            }
        }
    }
    to.extend(rest.iter().map(|part| (*part).to_owned()));
    while !modules.contains(&to) {
        to.pop()?;
    }
    Some(to)
}

/// Returns the modules that each module in the folder uses. `inline` are modules without a file.
pub fn known(folder: &str, inline: &[&str]) -> Known {
    let files = sources();
    let inline = inline.iter().map(|name| vec![(*name).to_owned()]);
    let modules = files.iter().filter_map(|path| module(folder, path));
    let modules: BTreeSet<Module> = modules.chain(inline).collect();
    assert!(modules.len() > 50, "the files are found");
    let mut known = BTreeMap::new();
    for path in &files {
        let Some(here) = module(folder, path) else {
            continue;
        };
        let text = read(path).lines().map(code).collect::<Vec<_>>().join("\n");
        let (product, tests) = text.split_once("\nmod tests {").unwrap_or((&text, ""));
        let inside = [here.clone(), vec!["tests".to_owned()]].concat();
        let of = |text, here: &[String]| -> Vec<Module> {
            let paths = paths(text).into_iter();
            paths
                .filter_map(|path| target(&path, here, &modules))
                .collect()
        };
        let mut all: BTreeSet<Module> = of(product, &here).into_iter().collect();
        all.extend(of(tests, &inside));
        all.remove(&here);
        known.insert(here, all);
    }
    known
}

/// Returns each module that leads back to itself, with the others of its circles.
pub fn circles(known: &Known) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let reached = |from: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for to in known.get(module).into_iter().flatten() {
                if reached.insert(to) {
                    next.push(to);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = known.keys().map(|from| (from, reached(from))).collect();
    let back = |from: &Module, to: &Module| reached.get(to).is_some_and(|all| all.contains(from));
    let circles = reached.iter().map(|(from, all)| {
        let circle = all.iter().filter(|to| back(from, to)).copied();
        (*from, circle.collect())
    });
    circles.collect()
}

fn name(module: &[String]) -> String {
    format!("shim/src/{}.rs", module.join("/"))
}

#[test]
fn a_room_uses_only_rooms_below_it() {
    let place = |module: &Module| ROOMS.iter().position(|room| *room == module[0]);
    let mut found = Vec::new();
    for (from, all) in known("shim/src/", &[]) {
        if from[0] == "lib" {
            continue;
        }
        let Some(here) = place(&from) else {
            found.push(format!("{} is in no room of this test", name(&from)));
            continue;
        };
        for to in all {
            if place(&to).is_none_or(|there| there > here) {
                found.push(format!("{} knows {}", name(&from), name(&to)));
            }
        }
    }
    none(
        "a room of the library knows one that stands above it",
        &found,
    );
}

#[test]
fn files_of_different_rooms_have_no_cycle() {
    let known = known("shim/src/", &[]);
    let mut found = Vec::new();
    for (from, circle) in circles(&known) {
        for to in circle.into_iter().filter(|to| known[from].contains(*to)) {
            if from[0] != to[0] || !TURNING.contains(&from[0].as_str()) {
                found.push(format!("{} knows {}", name(from), name(to)));
            }
        }
    }
    none("files of the library know each other", &found);
}

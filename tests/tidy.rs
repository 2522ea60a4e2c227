//! Rules of the source tree that no compiler checks.
//!
//! `UPDATE=1 cargo test --test tidy` rewrites `docs/internals/hooks.md` and
//! `tests/gpu/signatures.txt` from the hook table.
#![allow(clippy::unwrap_used, reason = "a test that reads files")]

#[path = "tidy/controller.rs"]
mod controller;
#[path = "tidy/flakes.rs"]
mod flakes;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/text.rs"]
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const TABLE: &str = "shim/src/table.rs";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns every file of the repository, by its path below the root: the files that git knows, or
/// all files where there is no git.
fn files() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let mut files: Vec<String> = match listed {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().map(str::to_owned).collect()
        }
        _ => walk(root()),
    };
    files.retain(|path| root().join(path).is_file());
    assert!(files.len() > 100, "{files:?}");
    files
}

fn walk(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if ["target", "dist", ".git", ".cache", "__pycache__"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            let path = path.strip_prefix(root()).unwrap();
            files.push(path.to_string_lossy().into_owned());
        }
    }
    files
}

fn sources() -> Vec<String> {
    let mut files = files();
    files.retain(|path| path.ends_with(".rs"));
    files
}

/// Fails if anything was found, and prints each finding on a line.
#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// Returns a line's code without comments and string contents.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if quoted => _ = characters.next(),
            '"' => quoted = !quoted,
            '/' if !quoted && characters.peek() == Some(&'/') => break,
            _ if !quoted => code.push(character),
            _ => {}
        }
    }
    code
}

// Files and names.

#[test]
fn modules_are_named_after_their_subject() {
    let vague = [
        "mod", "util", "utils", "helper", "helpers", "common", "types", "misc",
    ];
    let is_vague = |path: &String| {
        path.split('/')
            .any(|part| vague.contains(&part.split('.').next().unwrap()))
    };
    let mut found = files();
    found.retain(|path| (path.ends_with(".rs") || path.ends_with(".py")) && is_vague(path));
    none(
        "a module's name says what is in it, and foo.rs stands beside foo/",
        &found,
    );
}

#[test]
fn scripts_can_be_run_and_say_what_they_do() {
    let mut scripts = files();
    scripts.retain(|path| path.starts_with("scripts/") || path.starts_with(".ci/"));
    assert!(scripts.len() >= 7, "{scripts:?}");
    for path in scripts {
        let mode = fs::metadata(root().join(&path))
            .unwrap()
            .permissions()
            .mode();
        assert!(mode & 0o111 == 0o111, "{path} is not executable");
        let text = read(&path);
        let mut lines = text.lines();
        assert!(
            lines.next().unwrap().starts_with("#!"),
            "{path} names its interpreter"
        );
        assert!(
            lines.next().unwrap().starts_with("# "),
            "{path} says what it does"
        );
    }
}

#[test]
fn no_file_names_a_developers_machine() {
    let places = ["work", "root", "home", "Users"].map(|name| format!("/{name}/"));
    let hosts = [
        "github.com",
        "rustup.rs",
        "www.apache.org",
        "keepachangelog.com",
        "semver.org",
        "docs.nvidia.com",
        "docs.rs",
        "127.0.0.1",
        // The XML name space of SVG.
        "www.w3.org",
        // The dialect of JSON schemas.
        "json-schema.org",
    ];
    let mut found = Vec::new();
    for path in files() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let place = places.iter().any(|place| line.contains(place));
            let foreign = line.split("://").skip(1).any(|rest| {
                let host = rest.split(|c: char| !(c.is_alphanumeric() || ".-".contains(c)));
                let host = host.into_iter().next().unwrap_or_default();
                host.contains('.') && !hosts.contains(&host.trim_end_matches('.'))
            });
            if place || foreign {
                found.push(format!("{path}:{}: {line}", number + 1));
            }
        }
    }
    none(
        "paths of somebody's machine, or hosts that are not in this test's list",
        &found,
    );
}

// Unsafe code.

/// Returns the files that ARCHITECTURE.md lists where it says where `unsafe` lives.
fn unsafe_files() -> BTreeSet<String> {
    let text = read("ARCHITECTURE.md");
    let start = text
        .find("`unsafe` lives in")
        .expect("ARCHITECTURE.md says where unsafe code is");
    let paragraph = text[start..].split("\n\n").next().unwrap();
    let names = quoted(paragraph);
    names
        .iter()
        .filter(|name| name.ends_with(".rs"))
        .flat_map(|name| expand(name))
        .collect()
}

/// Returns the texts in backticks, also those that span lines.
fn quoted(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(|name| name.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Expands `a/{b,c}.rs` as a shell does; at most one pair of braces.
fn expand(name: &str) -> Vec<String> {
    let Some((front, (inner, back))) = name
        .split_once('{')
        .and_then(|(front, rest)| Some((front, rest.split_once('}')?)))
    else {
        return vec![name.to_owned()];
    };
    let parts = inner.split(',').map(str::trim);
    parts.map(|part| format!("{front}{part}{back}")).collect()
}

#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let mut here = BTreeSet::new();
    for path in sources() {
        let rooms = ["src/", "crates/", "shim/src/", "k8s/src/"];
        let product = rooms.iter().any(|room| path.starts_with(room)) && !path.contains("/tests/");
        if product && read(&path).contains("unsafe_code") {
            here.insert(path);
        }
    }
    let said = unsafe_files();
    let unsaid: Vec<_> = here.difference(&said).cloned().collect();
    none(
        "unsafe code in files that ARCHITECTURE.md does not name",
        &unsaid,
    );
    let gone: Vec<_> = said.difference(&here).cloned().collect();
    none("ARCHITECTURE.md names files without unsafe code", &gone);
}

#[test]
fn files_of_proc_are_read_as_bytes() {
    let mut found = Vec::new();
    for path in sources() {
        // Users choose the names of programs and mounts: code that accepts only UTF-8 would fail to
        // read these files for such users.
        let product = (path.starts_with("src/") || path.starts_with("shim/src/"))
            && !path.ends_with("tests.rs");
        let text = read(&path);
        let text = text.split("mod tests {").next().unwrap_or_default();
        for name in [
            "status",
            "stat",
            "comm",
            "cgroup",
            "maps",
            "mountinfo",
            "mounts",
        ] {
            let ends = [format!("/{name}\""), format!("(\"{name}\")")];
            let mut lines = text.lines();
            if product
                && lines.any(|line| {
                    line.contains("read_to_string(") && ends.iter().any(|end| line.contains(end))
                })
            {
                found.push(format!("{path}: {name}"));
            }
        }
    }
    none(
        "read_to_string of files of /proc (see crates/base/src/proc.rs)",
        &found,
    );
}

#[test]
fn unsafe_blocks_have_a_safety_comment() {
    let mut found = Vec::new();
    for path in sources() {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = code(line);
            if !code.contains("unsafe {") && !code.contains("unsafe impl") {
                continue;
            }
            // A SAFETY comment may have several lines, and a statement may begin before its block.
            let before = &lines[number.saturating_sub(8)..=number];
            if !before.iter().any(|line| line.contains("SAFETY:")) {
                found.push(format!("{path}:{}", number + 1));
            }
        }
    }
    none("unsafe without a SAFETY line", &found);
}

// The hook table.

struct Row {
    library: String,
    class: String,
    symbol: String,
    handler: String,
}

/// Returns whether this line of the table is a hook.
fn is_row(line: &str) -> bool {
    line.contains(") => ") && line.ends_with(';')
}

fn rows() -> Vec<Row> {
    let text = read(TABLE);
    let mut rows = Vec::new();
    let mut library = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("/// lib") {
            library = format!("lib{name}");
        }
        if !is_row(line) {
            continue;
        }
        let (front, handler) = line.split_once(") => ").unwrap();
        let (name, _) = front.split_once('(').unwrap();
        let mut words = name.split_whitespace();
        rows.push(Row {
            library: library.clone(),
            class: words.next().unwrap().to_owned(),
            symbol: words.next().unwrap().to_owned(),
            handler: handler.trim_end_matches(';').to_owned(),
        });
    }
    assert!(rows.len() > 50, "the rows of {TABLE} are read");
    rows
}

/// Returns the documentation of a handler such as `linear::alloc`, without the list of functions
/// that it begins with.
fn documented(handler: &str) -> String {
    let (module, function) = handler.split(',').next().unwrap().split_once("::").unwrap();
    // Handlers that hand out hooks are doors.
    let folder = match module {
        "lookup" => "shim/src/entry/door",
        _ => "shim/src/handler",
    };
    let text = read(&format!("{folder}/{module}.rs"));
    let head = format!("pub fn {function}");
    let is_head = |line: &&str| {
        let rest = line.strip_prefix(&head);
        rest.is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(is_head);
    let before = &lines[..at.unwrap_or_else(|| panic!("{handler} is there"))];
    let docs: Vec<&str> = before
        .iter()
        .rev()
        .skip_while(|line| line.starts_with("#["))
        .map_while(|line| line.strip_prefix("/// "))
        .collect();
    assert!(!docs.is_empty(), "{handler} is documented");
    let docs = docs.into_iter().rev().collect::<Vec<_>>().join(" ");
    match docs.split_once(": ") {
        Some((functions, rest)) if functions.starts_with('`') => rest.to_owned(),
        _ if docs.starts_with('`') => String::new(),
        _ => docs,
    }
}

/// Returns by symbol the process test that fails without the hook, as scripts/prove-hooks found it.
fn proofs() -> BTreeMap<String, String> {
    let text = read("tests/programs/proofs.txt");
    let pair = |line: &str| {
        let (symbol, test) = line.split_once(' ').unwrap();
        (symbol.to_owned(), test.to_owned())
    };
    text.lines().map(pair).collect()
}

#[test]
fn every_hook_is_proven_by_a_test() {
    let (rows, proofs) = (rows(), proofs());
    let unproven: Vec<String> = rows
        .iter()
        .filter(|row| !proofs.contains_key(&row.symbol))
        .map(|row| row.symbol.clone())
        .collect();
    none(
        "hooks without a test that misses them (scripts/prove-hooks)",
        &unproven,
    );
    for (symbol, test) in proofs {
        assert!(
            rows.iter().any(|row| row.symbol == symbol),
            "{symbol} is no hook any more"
        );
        let (module, function) = test.split_once("::").unwrap();
        let text = read(&format!("tests/programs/tests/shim/{module}.rs"));
        assert!(
            text.contains(&format!("fn {function}(")),
            "{test} of {symbol} is there"
        );
    }
}

/// The cases of wrong handles (`tests/gpu/handles.py`) follow from the functions' signatures.
#[test]
fn signatures_of_every_hook_are_written_down() {
    let text = read(TABLE);
    let rows = text.lines().filter(|line| is_row(line));
    let mut list = String::new();
    for row in rows {
        let (signature, _) = row.split_once(" => ").unwrap();
        let (_, signature) = signature.trim().split_once(' ').unwrap();
        writeln!(list, "{}", signature.trim()).unwrap();
    }
    let place = root().join("tests/gpu/signatures.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&place, &list).unwrap();
    }
    assert!(
        fs::read_to_string(&place).is_ok_and(|text| text == list),
        "tests/gpu/signatures.txt is not what the table says: UPDATE=1 cargo test --test tidy"
    );
}

#[test]
fn docs_name_every_hook() {
    let mut page = String::from(
        "# Hooks\n\n\
         The functions of the driver that gpulimit hooks, what each hook does, and a test that\n\
         fails without it. `UPDATE=1 cargo test --test tidy` writes this page from\n\
         `shim/src/table.rs`, the documentation of the handlers and\n\
         `tests/programs/proofs.txt` (scripts/prove-hooks). The classes are explained in\n\
         `shim/src/hook.rs`; the tests are in `tests/programs/tests/shim`. To measure means to\n\
         ask NVML what this process holds. [unhooked.md](unhooked.md) says why other functions\n\
         are not hooked.\n",
    );
    let proofs = proofs();
    let mut library = String::new();
    for row in rows() {
        if row.library != library {
            library = row.library.clone();
            write!(
                page,
                "\n## {library}\n| function | class | what | test |\n|---|---|---|---|\n"
            )
            .unwrap();
        }
        let test = proofs.get(&row.symbol).cloned().unwrap_or_default();
        let what = documented(&row.handler);
        writeln!(
            page,
            "| `{}` | {} | {what} | `{test}` |",
            row.symbol, row.class
        )
        .unwrap();
    }
    let place = root().join("docs/internals/hooks.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&place, &page).unwrap();
    }
    assert!(
        fs::read_to_string(&place).is_ok_and(|text| text == page),
        "docs/internals/hooks.md is not what the table says: UPDATE=1 cargo test --test tidy"
    );
}

#[test]
fn only_the_table_declares_symbols_of_the_driver() {
    let is_symbol = |word: &str| {
        ["cu", "nvml"].iter().any(|prefix| {
            let rest = word.strip_prefix(prefix).unwrap_or_default();
            rest.starts_with(|first: char| first.is_ascii_uppercase())
        })
    };
    let mut found = Vec::new();
    for path in sources() {
        if !path.starts_with("shim/src/") || path == TABLE {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let code = code(line);
            let mut before = "";
            for word in code.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_')) {
                let name = word.trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '_'));
                // Paths such as `cuda::cuMemAlloc_v2(` and `has::nvmlInit_v2(` go through the
                // table.
                if is_symbol(name) && !["cuda::", "nvml::", "has::"].contains(&before) {
                    found.push(format!("{path}:{}: {name}", number + 1));
                }
                before = match word {
                    ":" if before == "cuda:" => "cuda::",
                    ":" if before == "nvml:" => "nvml::",
                    ":" if before == "has:" => "has::",
                    "cuda:" => "cuda:",
                    "nvml:" => "nvml:",
                    "has:" => "has:",
                    _ => "",
                };
            }
        }
    }
    none(
        "names of the driver's functions outside of the table",
        &found,
    );
}

// Documentation.

/// Returns the words of a page that are paths of this repository.
fn paths(text: &str) -> Vec<String> {
    let folders = [
        "src/", "crates/", "shim/", "tests/", "scripts/", "benches/", "config/", "docs/", "demo/",
        ".ci/",
    ];
    let separator = |c: char| c.is_whitespace() || "`()[]|\"'<>*;".contains(c);
    let words = text.split(separator).map(|word| {
        let word = word.trim_start_matches("./");
        let word = word.split('#').next().unwrap_or_default();
        word.trim_end_matches(|c: char| ".,:…?!".contains(c))
    });
    words
        .filter(|word| folders.iter().any(|folder| word.starts_with(folder)))
        .flat_map(expand)
        .collect()
}

#[test]
fn pages_refer_to_files_that_exist() {
    let mut found = Vec::new();
    let mut pages = files();
    pages.retain(|path| path.ends_with(".md"));
    for page in pages {
        let folder = root().join(&page).parent().map(PathBuf::from).unwrap();
        for path in paths(&read(&page)) {
            if !root().join(&path).exists() && !folder.join(&path).exists() {
                found.push(format!("{page}: {path}"));
            }
        }
    }
    none("pages name what is not there", &found);
}

#[test]
fn every_test_file_is_explained() {
    let readme = read("tests/README.md");
    let mut found = sources();
    found.retain(|path| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let tests = [
            "tests",
            "tests/driver/tests/sim",
            "tests/programs/tests/shim",
        ];
        let explained =
            readme.contains(&format!("`{name}`")) || readme.contains(&format!("`{path}`"));
        tests.contains(&folder) && name != "main.rs" && !explained
    });
    none("tests/README.md does not say what these prove", &found);
}

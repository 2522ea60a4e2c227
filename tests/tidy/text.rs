//! Rules of text: the width of lines, the length of the overviews, and links between pages.

use super::{files, none, read, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The widest line, in characters.
const COLUMNS: usize = 100;

// Width.

/// Whether a file is data rather than text that somebody writes: pictures, records of runs, inputs
/// of tests, what tools write for tools, and copies of files of other projects.
fn is_data(path: &str) -> bool {
    let folders = ["fixtures", "corpus", "vendor"];
    let endings = [".svg", ".json", ".lock"];
    let mut parts = path.split('/');
    parts.any(|part| folders.contains(&part)) || endings.iter().any(|end| path.ends_with(end))
}

/// The line without the targets of links, which cannot be broken.
fn without_links(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let end = after.find(')').unwrap_or(after.len());
        text.push_str(before);
        text.push_str("](");
        rest = &after[end..];
    }
    text.push_str(rest);
    let words = text.split(' ').map(|word| match word.find("://") {
        Some(at) => &word[..at],
        None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a line that a page shows is a row of a table that a program printed: cells with two
/// spaces or more between them.
fn is_printed_row(line: &str) -> bool {
    let cells = line
        .trim()
        .split("  ")
        .filter(|cell| !cell.trim().is_empty());
    cells.count() >= 4
}

/// The lines of a file that are too wide, as `path:number: width`.
fn wide_lines(path: &str, text: &str) -> Vec<String> {
    let (is_page, is_rust) = (path.ends_with(".md"), path.ends_with(".rs"));
    // An entry a line, which tests and scripts read.
    let is_list = path.ends_with(".txt");
    let mut shown = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if is_page && line.trim_start().starts_with("```") {
            shown = !shown;
        }
        let text_of_comment = line
            .trim_start()
            .trim_start_matches("//!")
            .trim_start_matches("///");
        let is_table = (is_page || is_rust) && text_of_comment.trim_start().starts_with('|')
            || is_page && shown && is_printed_row(line);
        let is_entry = is_list && !line.starts_with('#');
        // A row of the hook table, or of the simulated driver's symbols.
        let is_hook = is_rust
            && (line.contains(" => ") || path.ends_with("/table.rs"))
            && line.ends_with(';');
        let is_word = !line.trim().contains(' ');
        let width = without_links(line).chars().count();
        if width > COLUMNS && !(is_table || is_entry || is_hook || is_word) {
            found.push(format!("{path}:{}: {width}", number + 1));
        }
    }
    found
}

#[test]
fn lines_have_100_columns() {
    let mut found = Vec::new();
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for path in files() {
        if is_data(&path) {
            continue;
        }
        // What is no text has no lines.
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        let wide = wide_lines(&path, &text);
        if !wide.is_empty() {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            *folders.entry(folder.to_owned()).or_default() += wide.len();
        }
        found.extend(wide);
    }
    none(
        &format!("lines of more than {COLUMNS} columns; by folder: {folders:#?}"),
        &found,
    );
}

#[test]
fn wide_lines_are_told_from_what_cannot_be_broken() {
    let long = "word ".repeat(30);
    assert_eq!(wide_lines("a.md", &long), ["a.md:1: 150"]);
    assert_eq!(wide_lines("a.sh", &format!("x\n{long}")), ["a.sh:2: 150"]);
    let url = format!("[text](https://docs.rs/{}) and more", "x".repeat(100));
    let row = format!("```\n{}\n```", "cell  ".repeat(30));
    let hook = format!("    sized cuX({}) => linear::alloc;", "a: u32, ".repeat(20));
    let same = [
        ("a.md", format!("| {long} |")),
        ("a.md", url),
        ("a.md", row),
        ("a.rs", hook),
        ("a.txt", long.clone()),
        ("a.rs", "x".repeat(120)),
    ];
    for (path, text) in same {
        assert_eq!(wide_lines(path, &text), [""; 0], "{text}");
    }
    // What looks like a table is none outside of a block.
    assert_eq!(wide_lines("a.md", &"cell  ".repeat(30)).len(), 1);
}

// Length.

#[test]
fn overviews_are_short() {
    let mut found = Vec::new();
    for (page, most) in [("README.md", 200), ("ARCHITECTURE.md", 300)] {
        let lines = read(page).lines().count();
        if lines > most {
            found.push(format!("{page}: {lines} lines, at most {most}"));
        }
    }
    none("overviews that are too long for one", &found);
}

// Links.

/// The targets of the links of a page, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut shown = false;
    let mut found = Vec::new();
    // A link may be broken between its words.
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            shown = !shown;
        } else if !shown {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    for part in prose.split("](").skip(1) {
        let target = part.split(')').next().unwrap_or_default();
        found.push(target.to_owned());
    }
    found
}

/// The names by which the headings of a page are linked, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_';
            title.chars().filter(kept).collect::<String>()
        })
        .map(|title| title.replace(' ', "-"))
        .collect()
}

/// `a/b/../c` without the step back.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn links_lead_to_pages_and_headings_that_exist() {
    let mut found = Vec::new();
    let mut pages = files();
    pages.retain(|path| path.ends_with(".md"));
    for page in pages {
        // A template is a page of another folder.
        if page.ends_with("/page.md") {
            continue;
        }
        let text = read(&page);
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page).parent().unwrap();
            let target = plain(&folder.join(path));
            let target = match path {
                "" => PathBuf::from(&page),
                _ => target,
            };
            let place = root().join(&target);
            if !place.exists() {
                found.push(format!("{page}: {link}"));
            } else if !anchor.is_empty() && place.extension().is_some_and(|end| end == "md") {
                let headings = anchors(&fs::read_to_string(&place).unwrap());
                if !headings.iter().any(|heading| heading == anchor) {
                    found.push(format!("{page}: {link}: no such heading"));
                }
            }
        }
    }
    none("links that lead nowhere", &found);
}

#[test]
fn headings_have_the_names_that_links_use() {
    let text = "# A `b` c\n## What it does, and why\n### /etc/ld.so.preload\n";
    let expected = ["a-b-c", "what-it-does-and-why", "etcldsopreload"];
    assert_eq!(anchors(text), expected);
    assert_eq!(
        links("[a](b.md#c)\n```\n[x](y)\n```\n[d\ne](f)"),
        ["b.md#c", "f"]
    );
}

// Mutants.

/// The entries of a page's list, each on one line.
fn entries(text: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("  "), entries.last_mut()) {
            (Some(more), Some(entry)) if entry.starts_with("- ") => {
                entry.push(' ');
                entry.push_str(more);
            }
            _ => entries.push(line.to_owned()),
        }
    }
    entries
}

/// `scripts/mutants` finds an explanation by its file and line.
#[test]
fn explained_mutants_are_in_lines_that_exist() {
    let page = read("docs/internals/mutants.md");
    let mut file = "";
    let (mut found, mut count) = (Vec::new(), 0);
    let entries = entries(&page);
    for entry in &entries {
        if let Some(name) = entry.strip_prefix("### `") {
            file = name.trim_end_matches('`');
        }
        if !entry.starts_with("- `") {
            continue;
        }
        let line = entry.split_once("` at `").map(|(_, rest)| rest);
        let line = line
            .and_then(|rest| rest.split_once("`: "))
            .map(|(line, _)| line);
        let line = line.unwrap_or_else(|| panic!("{entry}: no line"));
        count += 1;
        let source = fs::read_to_string(root().join(file)).unwrap_or_default();
        if !source.lines().any(|text| text.trim() == line) {
            found.push(format!("{file}: {line}"));
        }
    }
    assert!(count >= 40, "{count} explanations were read");
    none(
        "docs/internals/mutants.md explains lines that are gone",
        &found,
    );
}

//! The rooms of the controller: the folders of `src`.

use crate::rooms::{Known, Module, circles, known};
use crate::{code, none, read, sources};

/// The rooms from the bottom to the top: a room may use those before it, and none after it.
const ROOMS: [&str; 10] = [
    "words",
    "machine",
    "groups",
    "figures",
    "shown",
    "suspension",
    "contained",
    "verbs",
    "cli",
    "manual",
];

/// The files whose items are those of a room itself: `groups::Selection`.
const FRONTS: [[&str; 2]; 2] = [["groups", "selection"], ["figures", "group"]];

/// Returns the modules that each module of the controller uses.
fn arrows() -> Known {
    let mut known = known("src/", &ROOMS);
    known.remove(&vec!["main".to_owned()]);
    for (from, all) in &mut known {
        for front in FRONTS {
            if all.remove(&vec![front[0].to_owned()]) {
                all.insert(front.map(str::to_owned).to_vec());
            }
        }
        all.remove(from);
    }
    known
}

/// Fails if an arrow between two modules is wrong.
#[track_caller]
fn no_arrow(what: &str, is_wrong: impl Fn(&Module, &Module) -> bool) {
    let mut found = Vec::new();
    for (from, all) in arrows() {
        let wrong = all.into_iter().filter(|to| is_wrong(&from, to));
        found.extend(wrong.map(|to| format!("src/{} knows {}", from.join("/"), to.join("/"))));
    }
    none(what, &found);
}

#[test]
fn a_room_of_the_controller_uses_only_rooms_below_it() {
    let place = |module: &Module| ROOMS.iter().position(|room| *room == module[0]);
    no_arrow("an arrow leads up, or into no room", |from, to| {
        place(to).is_none() || place(to) > place(from)
    });
}

#[test]
fn no_verb_names_another_verb() {
    no_arrow("a verb names another verb", |from, to| {
        from[0] == "verbs" && to[0] == "verbs" && from.get(1) != to.get(1)
    });
}

#[test]
fn no_more_than_two_files_of_the_controller_know_each_other() {
    let mut known = arrows();
    known.remove(&vec!["cli".to_owned()]);
    let circles = circles(&known);
    let large = circles.values().filter(|circle| circle.len() > 2);
    let found: Vec<String> = large.map(|circle| format!("{circle:?}")).collect();
    none("files of the controller know each other", &found);
}

#[test]
fn only_the_room_shown_prints() {
    let mut found = Vec::new();
    for path in sources() {
        if !path.starts_with("src/") || path.starts_with("src/shown/") || path.contains("tests") {
            continue;
        }
        let text = read(&path);
        let product = text.split("#[cfg(test)]\nmod tests {").next();
        for (number, line) in product.unwrap_or_default().lines().enumerate() {
            let code = code(line);
            let prints = ["print!(", "println!(", "io::stdout()", "io::stderr()"];
            if prints.iter().any(|print| code.contains(print)) {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    none("only src/shown prints", &found);
}

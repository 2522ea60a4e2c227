//! The reference, or the schema, names every key of the JSON that verbs print, and every verb.

use std::collections::BTreeSet;
use std::fs;

use gpulimit_programs::world::{self, World, finish, repository, text};
use serde_json::Value;

fn reference() -> String {
    fs::read_to_string(repository().join("docs/reference.md")).expect("docs/reference.md")
}

/// Adds the keys of all objects in `value`.
fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                keys.insert(key.clone());
                collect(value, keys);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, keys)),
        _ => {}
    }
}

/// Asserts that the reference has each of these words in backticks.
#[track_caller]
fn named<'a>(words: impl IntoIterator<Item = &'a str>) {
    let page = reference();
    let schema = fs::read_to_string(repository().join("docs/schema.json")).expect("the schema");
    let in_schema = |word: &&str| schema.contains(&format!("\"{word}\": {{"));
    let quoted: BTreeSet<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .flat_map(str::split_whitespace)
        .collect();
    let missing: Vec<&str> = words
        .into_iter()
        .filter(|word| !quoted.contains(word) && !in_schema(word))
        .collect();
    assert!(
        missing.is_empty(),
        "not in docs/reference.md or docs/schema.json: {missing:?}"
    );
}

#[test]
fn every_key_of_the_json_is_in_the_reference() {
    let world = World::new(4 << 30);
    let mut session = world.on_gpu();
    assert_eq!(session.say("alloc a 1024M"), "0");
    assert_eq!(session.say("alloc b 4096M"), "2");
    let policy = world.file("policy.toml");
    fs::write(&policy, "[group.page]\nmax = \"1G\"\n").expect("written");
    let policy = policy.to_str().expect("UTF-8");
    let verbs: [&[&str]; 11] = [
        &["show", "--names"],
        &["show"],
        &["show", "--mine"],
        &["show", "--tree"],
        &["create", "page"],
        &["ps"],
        &["ps", "--by", "user"],
        &["top", "--once"],
        &["events"],
        &["doctor"],
        &["apply", "--dry-run", policy],
    ];
    let mut keys = BTreeSet::new();
    for verb in verbs {
        let mut command = world.bare(&world::controller());
        command.args(verb).arg("--json");
        command.env("GPULIMIT_LIBRARY", world::shim());
        command.env("GPULIMIT_GROUP", world::GROUP);
        let output = finish(command);
        let said = text(&output.stdout);
        let mut values = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
        let mut count = 0;
        for value in values.by_ref() {
            let value = value.unwrap_or_else(|error| panic!("{verb:?}: {error}: {said}"));
            collect(&value, &mut keys);
            count += 1;
        }
        assert!(count > 0, "{verb:?}: {}", text(&output.stderr));
    }
    for known in ["schema", "effective_max", "own_pid", "remedy", "charged"] {
        assert!(keys.contains(known), "{known} is not among {keys:?}");
    }
    named(keys.iter().map(String::as_str));
}

#[test]
fn every_verb_is_in_the_reference() {
    let mut command = world::World::without_group(&[]).bare(&world::controller());
    command.arg("--help");
    let said = text(&finish(command).stdout);
    let list = said.split("Commands:\n").nth(1).expect("a list of verbs");
    let verbs: Vec<&str> = list
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    named(verbs);
}

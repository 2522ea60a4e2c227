//! docs/schema.json: what the JSON of verbs has, made of the declared fields.

use crate::figures::fields::{Field, Unit};
use crate::figures::{self, Row, event, outside, past, processes, snapshot, trend, users, waiting};
use crate::verbs::report;
use gpulimit_limits::Key;
use serde_json::{Value, json};

/// The keys of an object, and what each is.
type Object = Vec<(&'static str, Value)>;

/// Returns the schema, with a line for each key. `$defs` has an entry for each command, and for
/// each object in its answer.
fn schema() -> String {
    let listed = |key, of| answer(&[(key, of)]);
    let mut top = answer(&[
        ("gpus", "gpu"),
        ("groups", "group"),
        ("processes", "process"),
    ]);
    top.push(("time", of_type(Unit::Time)));
    let machines = "Why each machine of `--machines` does not answer; null if it does.";
    top.push((
        "machines",
        json!({ "type": "object", "description": machines }),
    ));
    let objects: [(&str, Object); 25] = [
        ("show", answer(&[("gpus", "gpu"), ("groups", "group")])),
        ("ps", listed("processes", "process")),
        ("ps --outside", listed("outside", "outsider")),
        ("ps --by user", listed("users", "user")),
        ("top", top),
        ("events", object(event::FIELDS)),
        ("history", listed("histories", "past")),
        ("report", listed("uses", "use")),
        ("group", object(figures::FIELDS)),
        ("rule", rule()),
        ("options", object(figures::OPTIONS)),
        ("group_gpu", object(Row::FIELDS)),
        ("trend", object(trend::FIELDS)),
        ("grower", object(trend::GROWER)),
        ("process", object(processes::FIELDS)),
        ("outsider", object(outside::FIELDS)),
        ("wait", object(waiting::FIELDS)),
        ("user", object(users::FIELDS)),
        ("gpu", object(snapshot::FIELDS)),
        ("device", device()),
        ("holder", object(event::HOLDER)),
        ("past", object(past::FIELDS)),
        ("mark", object(past::MARK)),
        ("period", object(past::PERIOD)),
        ("use", object(report::line::FIELDS)),
    ];
    let objects = objects.map(|(name, object)| {
        let line = |(key, what): &(&str, Value)| format!("      {key:?}: {what}");
        let lines = object.iter().map(line).collect::<Vec<_>>().join(",\n");
        format!("    {name:?}: {{ \"type\": \"object\", \"properties\": {{\n{lines}\n    }} }}")
    });
    let dialect = "https://json-schema.org/draft/2020-12/schema";
    let objects = objects.join(",\n");
    format!("{{\n  \"$schema\": {dialect:?},\n  \"$defs\": {{\n{objects}\n  }}\n}}\n")
}

/// Describes the answer of a command with these lists of objects.
fn answer(lists: &[(&'static str, &'static str)]) -> Object {
    let lists = lists.iter();
    let root = json!({ "type": ["string", "null"], "description": "The group root." });
    [("schema", json!({ "const": 1 })), ("root", root)]
        .into_iter()
        .chain(lists.map(|(key, of)| (*key, of_type(Unit::Many(of)))))
        .collect()
}

fn object<Row>(fields: &[Field<Row>]) -> Object {
    let keyed = fields.iter().filter(|field| !field.key.is_empty());
    let property = |field: &Field<Row>| {
        let mut what = of_type(field.unit);
        if !field.says.is_empty() {
            what["description"] = field.says.into();
        }
        (field.key, what)
    };
    keyed.map(property).collect()
}

/// Describes the values of a unit. Most can be unknown.
fn of_type(unit: Unit) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/$defs/{name}") });
    match unit {
        Unit::Machine => json!({ "type": "string" }),
        Unit::Text => json!({ "type": ["string", "null"] }),
        Unit::Time => json!({ "type": ["string", "null"], "format": "date-time" }),
        Unit::Count => json!({ "type": ["integer", "null"] }),
        Unit::Bytes => json!({ "type": ["integer", "null"], "unit": "bytes" }),
        Unit::Percent => json!({ "type": ["integer", "null"], "unit": "percent" }),
        Unit::Ms => json!({ "type": ["integer", "null"], "unit": "milliseconds" }),
        Unit::Number => json!({ "type": ["number", "null"] }),
        Unit::Setting => json!({ "type": ["integer", "string", "null"] }),
        Unit::Flag => json!({ "type": "boolean" }),
        Unit::Device => of_type(Unit::One("device")),
        Unit::One(name) => json!({ "anyOf": [reference(name), { "type": "null" }] }),
        Unit::Many(name) => json!({ "type": "array", "items": reference(name) }),
    }
}

fn device() -> Object {
    let index = json!({ "type": ["integer", "null"], "description": "NVML's index." });
    vec![("uuid", json!({ "type": "string" })), ("index", index)]
}

fn rule() -> Object {
    let gpu = json!({ "type": "string", "description": "`all`, or a UUID." });
    let size = json!({ "type": "string" });
    let sizes = Key::ALL.map(|key| (key.name(), size.clone()));
    [("gpu", gpu)].into_iter().chain(sizes).collect()
}

#[test]
fn the_schema_is_that_of_the_declared_fields() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/schema.json");
    let text = schema();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &text).expect("written");
    }
    let there = std::fs::read_to_string(file).unwrap_or_default();
    let why = "UPDATE=1 cargo test -p gpulimit --bin gpulimit schema writes docs/schema.json";
    assert!(there == text, "{why}");
}

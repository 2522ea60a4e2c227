//! Compares answers with docs/schema.json, which is made of the fields that the controller
//! declares.

use gpulimit_support::repository;
use serde_json::Value;
use std::fs;

/// Fails if an answer of a command has a key that its schema does not describe, or a value of
/// another type.
pub fn check(command: &str, answer: &Value) {
    let text = fs::read_to_string(repository().join("docs/schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    let object = &schema["$defs"][command];
    assert!(object.is_object(), "docs/schema.json has no '{command}'");
    let wrong = wrong(&schema, object, answer);
    assert_eq!(wrong, None, "{command} --json, by docs/schema.json");
}

/// Returns the first value that is not as described.
fn wrong(schema: &Value, what: &Value, value: &Value) -> Option<String> {
    if let Some(name) = what["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return wrong(schema, &schema["$defs"][name], value);
    }
    if let Some(choices) = what["anyOf"].as_array() {
        let found = choices.iter().map(|one| wrong(schema, one, value));
        return found.min_by_key(Option::is_some).flatten();
    }
    let is_known = |known: &Value| match known.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    };
    let is_right = match &what["type"] {
        Value::Null => what["const"] == *value,
        Value::Array(types) => types.iter().any(is_known),
        one => is_known(one),
    };
    if !is_right {
        return Some(format!("{value} is not {what}"));
    }
    let items = value.as_array().into_iter().flatten();
    let mut items = items.map(|item| wrong(schema, &what["items"], item));
    let mut pairs = value.as_object().into_iter().flatten().map(|(key, value)| {
        let property = what["properties"].get(key);
        let why = property.map(|property| wrong(schema, property, value));
        why.unwrap_or_else(|| Some("no such key".into()))
            .map(|why| format!("{key}: {why}"))
    });
    items
        .find_map(|found| found)
        .or_else(|| pairs.find_map(|found| found))
}

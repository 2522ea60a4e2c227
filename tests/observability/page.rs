//! What docs/monitoring.md says: the metrics, and what to do about each alert.

use crate::{promtool, read};
use gpulimit_support::Scratch;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const PAGE: &str = "docs/monitoring.md";

/// Returns the type of each metric in the page's tables: rows with a name, a type, labels and a
/// meaning.
pub fn metrics() -> BTreeMap<String, String> {
    let page = read(PAGE);
    let mut metrics = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells
            .get(1)
            .and_then(|cell| cell.strip_prefix("`gpulimit_"));
        if let (Some(name), [_, _, kind, _, _, _]) = (name, &cells[..]) {
            let name = format!("gpulimit_{}", name.trim_end_matches('`'));
            assert!(["gauge", "counter", "info"].contains(kind), "{line}");
            let before = metrics.insert(name, (*kind).to_owned());
            assert_eq!(before, None, "{line}");
        }
    }
    assert!(metrics.len() >= 30, "{metrics:?}");
    metrics
}

/// Returns the page's section on an alert.
pub fn runbook(alert: &str) -> Option<String> {
    let page = read(PAGE);
    let (_, rest) = page.split_once(&format!("\n### {alert}\n"))?;
    let end = rest
        .find("\n## ")
        .into_iter()
        .chain(rest.find("\n### "))
        .min();
    Some(rest[..end.unwrap_or(rest.len())].to_owned())
}

#[test]
fn names_tell_the_type_of_a_metric() {
    for (name, kind) in metrics() {
        let is = |end: &str| name.ends_with(end);
        assert_eq!(is("_total"), kind == "counter", "{name}: {kind}");
        assert_eq!(is("_info"), kind == "info", "{name}: {kind}");
    }
}

#[test]
fn promtool_parses_the_queries_of_the_page() {
    let page = read(PAGE);
    let blocks = page.split("```promql\n").skip(1);
    let queries: Vec<&str> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    assert!(queries.len() >= 2, "{queries:?}");
    let rule = |query: &&str| json!({"record": "a", "expr": query});
    let rules: Vec<Value> = queries.iter().map(rule).collect();
    // JSON is YAML.
    let file = json!({"groups": [{"name": "page", "rules": rules}]}).to_string();
    let place = Scratch::new();
    let checked = promtool(&["check", "rules"], &place.write("queries.yml", &file));
    if let Some((good, said)) = checked {
        assert!(good, "{said}");
    }
}

//! The dashboard for Grafana: the rules of Grafana's dashboard-linter, restated here, and what a
//! dashboard needs so that Grafana's provisioning loads it.

use crate::queries::{self, Query, list, string, uses};
use crate::{page, promtool, read};
use gpulimit_support::Scratch;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const DASHBOARD: &str = "config/grafana/gpulimit.json";

/// The units that panels use; the linter knows them all.
const UNITS: [&str; 6] = ["bytes", "percentunit", "none", "s", "binBps", "bool_yes_no"];

/// The types of panels. Grafana 12 has removed `graph`, and the linter knows `timeseries`.
const TYPES: [&str; 5] = ["row", "timeseries", "bargauge", "state-timeline", "table"];

fn dashboard() -> Value {
    serde_json::from_str(&read(DASHBOARD)).expect("JSON")
}

fn is_templated(source: &Value) -> bool {
    *source == json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Returns the mistakes of a dashboard.
fn mistakes(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    whole(dashboard, &mut found);
    variables(dashboard, &mut found);
    panels(dashboard, &mut found);
    for query in queries::of_panels(dashboard) {
        selectors(&query, &mut found);
    }
    found
}

/// Adds a mistake unless `good`.
fn check(found: &mut Vec<String>, good: bool, mistake: impl Into<String>) {
    if !good {
        found.push(mistake.into());
    }
}

/// Checks the keys of the dashboard itself.
fn whole(dashboard: &Value, found: &mut Vec<String>) {
    let id = &dashboard["id"];
    check(
        found,
        dashboard.get("id").is_some() && id.is_null(),
        "id is not null",
    );
    let uid = string(&dashboard["uid"]);
    let letters = uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    check(found, letters && (8..=40).contains(&uid.len()), "uid");
    check(found, dashboard["schemaVersion"] == 42, "schemaVersion");
    check(found, dashboard["editable"] == false, "editable");
    // Provisioning leaves such inputs unfilled (grafana 10786).
    check(found, dashboard.get("__inputs").is_none(), "__inputs");
    check(found, !string(&dashboard["title"]).is_empty(), "title");
}

/// Checks the variables: a data source, `job`, `instance`, and others of Prometheus.
fn variables(dashboard: &Value, found: &mut Vec<String>) {
    let all = list(&dashboard["templating"]["list"]);
    let sources: Vec<&Value> = all.iter().filter(|it| it["type"] == "datasource").collect();
    let is_source = |it: &&Value| {
        it["name"] == "datasource" && it["label"] == "Data source" && it["query"] == "prometheus"
    };
    check(
        found,
        sources.len() == 1 && sources.iter().all(is_source),
        "variable datasource",
    );
    let mut known = vec!["datasource", "__rate_interval"];
    for variable in all.iter().filter(|it| it["type"] != "datasource") {
        let name = string(&variable["name"]);
        known.push(name);
        let is_query = variable["type"] == "query" && is_templated(&variable["datasource"]);
        check(
            found,
            is_query,
            format!("variable {name}: not a query of the data source"),
        );
        check(
            found,
            variable["refresh"] == 2,
            format!("variable {name}: refresh"),
        );
    }
    for (name, label) in [("job", "Job"), ("instance", "Instance")] {
        let is_it = |it: &&Value| {
            it["name"] == name
                && it["label"] == label
                && it["allValue"] == ".+"
                && it["multi"] == true
        };
        check(
            found,
            all.iter().any(|it| is_it(&it)),
            format!("variable {name}"),
        );
    }
    let queries = [
        queries::of_panels(dashboard),
        queries::of_variables(dashboard),
    ];
    for query in queries.concat() {
        for name in query.variables() {
            let mistake = format!("{}: no variable {name}", query.place);
            check(found, known.contains(&name), mistake);
        }
    }
}

/// Checks the panels: titles, units, data sources, ids and places.
fn panels(dashboard: &Value, found: &mut Vec<String>) {
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let title = string(&panel["title"]);
        let mut check = |good: bool, what: &str| check(found, good, format!("{title}: {what}"));
        check(!title.is_empty(), "title");
        let id = panel["id"].as_u64();
        check(id.is_some() && ids.insert(id), "id");
        check(TYPES.contains(&string(&panel["type"])), "type");
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(99));
        let free = (x..x + w).all(|x| (y..y + h).all(|y| cells.insert((x, y))));
        check(free && x + w <= 24, "place");
        if panel["type"] == "row" {
            continue;
        }
        check(!string(&panel["description"]).is_empty(), "description");
        check(
            UNITS.contains(&string(&panel["fieldConfig"]["defaults"]["unit"])),
            "unit",
        );
        for change in list(&panel["fieldConfig"]["overrides"]) {
            let units = list(&change["properties"])
                .iter()
                .filter(|it| it["id"] == "unit");
            check(
                units
                    .clone()
                    .all(|it| UNITS.contains(&string(&it["value"]))),
                "unit",
            );
        }
        check(is_templated(&panel["datasource"]), "data source");
        let targets = list(&panel["targets"]);
        check(!targets.is_empty(), "no target");
        let refs: BTreeSet<&str> = targets.iter().map(|it| string(&it["refId"])).collect();
        check(refs.len() == targets.len(), "refId");
        check(
            targets.iter().all(|it| is_templated(&it["datasource"])),
            "data source of a target",
        );
    }
}

/// Checks each metric of a query: matchers, ranges, and functions of counters.
fn selectors(query: &Query, found: &mut Vec<String>) {
    let place = &query.place;
    let metrics = uses(&query.text);
    check(found, !metrics.is_empty(), format!("{place}: no metric"));
    for metric in metrics {
        let mut check = |good: bool, what: &str| {
            check(found, good, format!("{place}: {}: {what}", metric.metric));
        };
        for label in ["job", "instance"] {
            let matcher = format!("{label}=~\"${label}\"");
            check(metric.matchers.contains(&matcher), label);
        }
        let is_rate = ["rate", "irate", "increase"].contains(&metric.function);
        let is_counter = metric.metric.ends_with("_total");
        check(
            is_counter == is_rate,
            "rate, irate or increase is for counters",
        );
        check(metric.range.is_empty() != is_rate, "range");
        check(
            metric.range.is_empty() || metric.range == "$__rate_interval",
            "$__rate_interval",
        );
    }
}

#[test]
fn the_dashboard_follows_the_linters_rules() {
    let mistakes = mistakes(&dashboard());
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn mistakes_in_dashboards_are_found() {
    let good = dashboard();
    let panels = good["panels"].as_array().expect("panels");
    let at = |key: &str, value: &str| {
        let is_it = |panel: &Value| panel[key] == value;
        panels.iter().position(is_it).expect("a panel")
    };
    let panel = |kind: &str, key: &str| format!("/panels/{}/{key}", at("type", kind));
    let expr = panel("timeseries", "targets/0/expr");
    let rates = panels
        .iter()
        .position(|panel| string(&panel["targets"][0]["expr"]).starts_with("rate("));
    let rate = format!(
        "/panels/{}/targets/0/expr",
        rates.expect("a panel with a rate")
    );
    let right = "rate(gpulimit_waits_total{job=~\"$job\", instance=~\"$instance\"}";
    for (place, wrong, mistake) in [
        ("/id", json!(7), "id is not null"),
        ("/uid", json!("short"), "uid"),
        ("/schemaVersion", json!(39), "schemaVersion"),
        ("/editable", json!(true), "editable"),
        (
            "/templating/list/0/label",
            json!("Source"),
            "variable datasource",
        ),
        (
            "/templating/list/1/refresh",
            json!(1),
            "variable job: refresh",
        ),
        ("/templating/list/1/multi", json!(false), "variable job"),
        (
            "/templating/list/2/allValue",
            json!(".*"),
            "variable instance",
        ),
        ("/templating/list/3/name", json!("card"), "no variable gpu"),
        (&panel("timeseries", "id"), json!(1), "id"),
        (&panel("timeseries", "type"), json!("graph"), "type"),
        (
            &panel("timeseries", "description"),
            json!(""),
            "description",
        ),
        (&panel("timeseries", "gridPos/x"), json!(20), "place"),
        (
            &panel("timeseries", "fieldConfig/defaults/unit"),
            json!("MiB"),
            "unit",
        ),
        (
            &panel("timeseries", "datasource/uid"),
            json!("abc"),
            "data source",
        ),
        (&panel("timeseries", "targets"), json!([]), "no target"),
        (
            &panel("table", "targets/0/datasource"),
            json!(null),
            "data source of a target",
        ),
        (&panel("table", "title"), json!(""), "title"),
        (
            &expr,
            json!("gpulimit_waits{instance=~\"$instance\"}"),
            "job",
        ),
        (&expr, json!("gpulimit_waits{job=~\"$job\"}"), "instance"),
        (&expr, json!("up"), "no metric"),
        (&rate, json!(format!("{right}[5m])")), "$__rate_interval"),
        (
            &rate,
            json!(right.trim_start_matches("rate(")),
            "rate, irate or increase",
        ),
    ] {
        let mut dashboard = good.clone();
        *dashboard
            .pointer_mut(place)
            .unwrap_or_else(|| panic!("{place}")) = wrong;
        let found = mistakes(&dashboard);
        assert!(
            found.iter().any(|it| it.contains(mistake)),
            "{place}: {mistake}: {found:?}"
        );
    }
    let mut inputs = good;
    inputs["__inputs"] = json!([]);
    assert_eq!(mistakes(&inputs), ["__inputs"]);
}

#[test]
fn promtool_parses_every_query_of_the_dashboard() {
    let (dashboard, place) = (dashboard(), Scratch::new());
    let queries = [
        queries::of_panels(&dashboard),
        queries::of_variables(&dashboard),
    ]
    .concat();
    let check = |queries: &[Query]| {
        let rules = queries.iter().enumerate().map(
            |(number, query)| json!({"record": format!("query_{number}"), "expr": query.filled()}),
        );
        let rules: Vec<Value> = rules.collect();
        // JSON is YAML.
        let file = json!({"groups": [{"name": "queries", "rules": rules}]}).to_string();
        promtool(&["check", "rules"], &place.write("queries.yml", &file))
    };
    let Some((good, said)) = check(&queries) else {
        return;
    };
    assert!(
        good && said.contains(&format!("{} rules found", queries.len())),
        "{said}"
    );
    let wrong = Query {
        place: String::new(),
        text: "sum by (gpulimit_waits_total".to_owned(),
    };
    assert_eq!(check(&[wrong]).map(|(good, _)| good), Some(false));
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let (dashboard, metrics) = (dashboard(), page::metrics());
    let queries = [
        queries::of_panels(&dashboard),
        queries::of_variables(&dashboard),
    ]
    .concat();
    assert!(queries.len() >= 20, "{queries:?}");
    for query in queries {
        for found in uses(&query.text) {
            let known = metrics.contains_key(found.metric);
            assert!(known, "{}: {} is not exported", query.place, found.metric);
        }
    }
}

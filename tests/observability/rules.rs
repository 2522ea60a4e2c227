//! The recording and alert rules, their tests, and the example of a scrape.

use crate::{page, promtool, queries, read, repository};
use gpulimit_support::Scratch;
use std::collections::BTreeSet;

const RULES: &str = "config/prometheus/rules.yml";
const TESTS: &str = "config/prometheus/rules-test.yml";
const SCRAPE: &str = "config/prometheus/scrape.yml";

/// Returns the rules of this kind, `record` or `alert`: the name of each, and the lines below it.
fn rules(kind: &str) -> Vec<(String, String)> {
    let text = read(RULES);
    let parts = text.split("\n      - ").skip(1);
    let rules = parts.filter_map(|part| {
        let (name, rest) = part
            .strip_prefix(kind)?
            .strip_prefix(": ")?
            .split_once('\n')?;
        Some((name.to_owned(), rest.to_owned()))
    });
    rules.collect()
}

/// Returns the value of a key of a rule that is on one line.
fn value<'a>(rule: &'a str, key: &str) -> &'a str {
    let start = format!("{key}: ");
    let mut lines = rule
        .lines()
        .filter_map(|line| line.trim().strip_prefix(&start));
    lines.next().unwrap_or_default()
}

#[test]
fn promtool_accepts_the_rules() {
    let Some((good, said)) = promtool(
        &["check", "rules", "--lint=all", "--lint-fatal"],
        &repository(RULES),
    ) else {
        return;
    };
    assert!(good, "{said}");
    let count = rules("record").len() + rules("alert").len();
    assert!(said.contains(&format!("{count} rules found")), "{said}");
}

#[test]
fn rules_fire_and_stay_silent_as_their_tests_say() {
    if let Some((good, said)) = promtool(&["test", "rules"], &repository(TESTS)) {
        assert!(good, "{said}");
    }
}

#[test]
fn each_alert_has_a_test_that_fires_and_one_that_is_silent() {
    let tests = read(TESTS);
    let cases = || tests.split("- alertname: ").skip(1);
    for (alert, _) in rules("alert") {
        let own: Vec<&str> = cases()
            .filter_map(|case| case.strip_prefix(&format!("{alert}\n")))
            .collect();
        let silent = own
            .iter()
            .filter(|case| case.contains("exp_alerts: []"))
            .count();
        let fires = own
            .iter()
            .filter(|case| case.contains("exp_labels:"))
            .count();
        assert_eq!(silent + fires, own.len(), "{alert}");
        assert!(
            silent > 0 && fires > 0,
            "{alert}: fires {fires}, silent {silent}"
        );
    }
}

/// A rule without its condition, its time or its threshold fails its tests.
#[test]
fn tests_of_rules_notice_mistakes() {
    let rules = read(RULES);
    let mut mistakes = vec![
        ("_bytes > 0)".to_owned(), "_bytes)".to_owned()),
        (
            "          and gpulimit_memory_max_bytes\n".to_owned(),
            String::new(),
        ),
        ("{group!~\"[^ ]+/.+\"}".to_owned(), String::new()),
        ("{event=\"oom\"}".to_owned(), String::new()),
        ("{job=\"gpulimit\"}".to_owned(), String::new()),
        ("[10m]".to_owned(), "[30m]".to_owned()),
    ];
    for (right, wrong) in [
        (" > 0.80", " > 0.60"),
        (" > 0.80", " >= 0.80"),
        (" > 0.90", " > 0.80"),
        (" > 0.05", " >= 0.05"),
        (" < 0.10", " <= 0.10"),
        (" > 300", " > 299"),
        ("leak == 1", "leak > 1"),
        ("([^ ]+)/", "(.+)/"),
        ("} == 0", "} == 2"),
        ("        for: 3m\n", ""),
        ("        for: 5m\n", ""),
        ("        for: 10m\n", ""),
        ("severity: warning", "severity: page"),
    ] {
        mistakes.push((right.to_owned(), wrong.to_owned()));
    }
    let place = Scratch::new();
    let write = |(number, (right, wrong)): (usize, &(String, String))| {
        assert!(rules.contains(right), "{right}");
        let wrong = rules.replace(right, wrong);
        place.write(&format!("{number}/rules.yml"), &wrong);
        place.write(&format!("{number}/rules-test.yml"), &read(TESTS))
    };
    let files: Vec<_> = mistakes.iter().enumerate().map(write).collect();
    let (last, others) = files.split_last().expect("mistakes");
    let others = others.iter().map(|path| path.to_str().expect("UTF-8"));
    let arguments: Vec<_> = ["test", "rules"].into_iter().chain(others).collect();
    let Some((_, said)) = promtool(&arguments, last) else {
        return;
    };
    for (file, (right, wrong)) in files.iter().zip(&mistakes) {
        let head = format!("Unit Testing:  {}\n", file.display());
        let (_, result) = said.split_once(&head).unwrap_or_else(|| panic!("{said}"));
        let passes = result.trim_start().starts_with("SUCCESS");
        assert!(!passes, "{wrong:?} instead of {right:?} passes: {said}");
    }
    assert_eq!(said.matches("  FAILED:").count(), mistakes.len(), "{said}");
}

#[test]
fn alerts_say_what_to_do() {
    let alerts = rules("alert");
    assert!(alerts.len() >= 8, "{alerts:?}");
    for (alert, rule) in alerts {
        let camel = alert.strip_prefix("Gpulimit").unwrap_or_default();
        assert!(
            camel.starts_with(|c: char| c.is_ascii_uppercase()),
            "{alert}"
        );
        assert!(camel.chars().all(|c| c.is_ascii_alphanumeric()), "{alert}");
        assert!(
            ["warning", "critical"].contains(&value(&rule, "severity")),
            "{alert}"
        );
        assert!(!value(&rule, "summary").is_empty(), "{alert}");
        assert!(!value(&rule, "description").is_empty(), "{alert}");
        let expected = format!("docs/monitoring.md#{}", alert.to_lowercase());
        let url = value(&rule, "runbook_url");
        assert!(
            url.ends_with(&expected) && url.contains("://"),
            "{alert}: {url}"
        );
        let runbook = page::runbook(&alert).unwrap_or_else(|| panic!("{alert}: no runbook"));
        for part in ["Meaning", "Impact", "Diagnosis", "Mitigation"] {
            let starts = format!("- **{part}**: ");
            assert!(runbook.contains(&starts), "{alert}: no {starts}");
        }
    }
}

#[test]
fn recorded_names_have_a_level_a_metric_and_an_operation() {
    for (name, _) in rules("record") {
        let parts: Vec<&str> = name.split(':').collect();
        let [level, metric, operation] = parts[..] else {
            panic!("{name}");
        };
        assert!(["group_gpu", "gpu"].contains(&level), "{name}");
        assert!(metric.starts_with("gpulimit_"), "{name}");
        assert!(!operation.is_empty(), "{name}");
    }
}

#[test]
fn rules_use_metrics_that_exist() {
    let metrics = page::metrics();
    let recorded: BTreeSet<String> = rules("record").into_iter().map(|(name, _)| name).collect();
    let text = read(RULES);
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    let uses = queries::uses(&text);
    assert!(uses.len() > recorded.len());
    for found in uses {
        let name = found.metric;
        let known = metrics.contains_key(name) || recorded.contains(name);
        assert!(known, "{name} is neither exported nor recorded");
        let is_range = ["rate", "increase"].contains(&found.function) && !found.range.is_empty();
        assert!(!name.ends_with("_total") || is_range, "{found:?}");
    }
}

#[test]
fn promtool_accepts_the_scrape() {
    let place = Scratch::new();
    let scrape = place.write("prometheus.yml", &read(SCRAPE));
    place.write("gpulimit/rules.yml", &read(RULES));
    place.write("gpulimit/gpulimit.token", "secret\n");
    let Some((good, said)) = promtool(&["check", "config"], &scrape) else {
        return;
    };
    assert!(good && said.contains("1 rule files found"), "{said}");
    let wrong = read(SCRAPE).replace("honor_labels", "honour_labels");
    let (good, said) = promtool(&["check", "config"], &place.write("wrong.yml", &wrong))
        .expect("promtool is there");
    assert!(!good && said.contains("honour_labels"), "{said}");
}

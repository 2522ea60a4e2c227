//! The queries of the dashboard and of rules: where they are, and which metrics they use.

use serde_json::Value;

/// A query of the dashboard.
#[derive(Clone, Debug)]
pub struct Query {
    /// The title of its panel, or the name of its variable.
    pub place: String,
    /// The query as it is in the file, with Grafana's variables.
    pub text: String,
}

impl Query {
    /// Returns the names of Grafana's variables in the query. `$1` is a part of a regular
    /// expression's match.
    pub fn variables(&self) -> Vec<&str> {
        let names = self.text.split('$').skip(1).map(|rest| {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            &rest[..end]
        });
        names
            .filter(|name| !name.starts_with(|c: char| c.is_ascii_digit()))
            .collect()
    }

    /// Returns the query with a value for each of Grafana's variables: everything is selected.
    pub fn filled(&self) -> String {
        let mut text = self.text.replace("$__rate_interval", "1m");
        for name in ["job", "instance", "gpu", "group"] {
            text = text.replace(&format!("\"${name}\""), "\".*\"");
        }
        text
    }
}

/// Returns the items of a JSON list; none if the value is not a list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the text of a JSON value; empty if the value is not a text.
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the queries of all panels.
pub fn of_panels(dashboard: &Value) -> Vec<Query> {
    let panels = list(&dashboard["panels"]).iter();
    let queries = panels.flat_map(|panel| {
        let targets = list(&panel["targets"]).iter();
        targets.map(|target| Query {
            place: string(&panel["title"]).to_owned(),
            text: string(&target["expr"]).to_owned(),
        })
    });
    queries.collect()
}

/// Returns the queries of all variables: of `label_values(QUERY, LABEL)` the `QUERY`.
pub fn of_variables(dashboard: &Value) -> Vec<Query> {
    let variables = list(&dashboard["templating"]["list"]).iter();
    let queries = variables.filter(|variable| variable["type"] == "query");
    let queries = queries.map(|variable| {
        let text = string(&variable["query"]);
        let inner = text
            .strip_prefix("label_values(")
            .and_then(|rest| rest.rsplit_once(", "))
            .map(|(query, _)| query.to_owned());
        Query {
            place: string(&variable["name"]).to_owned(),
            text: inner.unwrap_or_else(|| panic!("{text}: not label_values(QUERY, LABEL)")),
        }
    });
    queries.collect()
}

/// A metric in a query, with what stands around it.
#[derive(Debug)]
pub struct Use<'a> {
    pub metric: &'a str,
    /// What is between the braces; empty without braces.
    pub matchers: &'a str,
    /// The function that has the metric as its only argument; empty without one.
    pub function: &'a str,
    /// The range between brackets; empty without one.
    pub range: &'a str,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Returns the metrics of gpulimit in a query, those that rules record included.
pub fn uses(query: &str) -> Vec<Use<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = query[at..].find("gpulimit_") {
        let start = query[..at + next]
            .rfind(|c| !is_word(c))
            .map_or(0, |end| end + 1);
        let end = query[start..]
            .find(|c| !is_word(c))
            .map_or(query.len(), |end| start + end);
        let mut rest = &query[end..];
        let mut part = |open: char, close: char| {
            let inner = rest
                .strip_prefix(open)
                .and_then(|inner| inner.split_once(close));
            let (inner, after) = inner.unwrap_or(("", rest));
            rest = after;
            inner
        };
        let (matchers, range) = (part('{', '}'), part('[', ']'));
        let before = query[..start].strip_suffix('(').unwrap_or_default();
        let function = before.rfind(|c| !is_word(c)).map_or(0, |end| end + 1);
        found.push(Use {
            metric: &query[start..end],
            matchers,
            function: &before[function..],
            range,
        });
        at = end;
    }
    found
}

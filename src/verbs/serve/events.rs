//! Events as JSON.

use super::query;
use super::reading::Public;
use super::refusal::Refusal;
use super::worker::Sources;
use crate::figures::event::{Line, watch::Watch};
use crate::groups::{SCHEMA, Selection};
use crate::shown::output;
use crate::words::failure::Failure;
use jiff::Zoned;
use serde_json::{Value, json};

/// Returns the events that the query asks for.
pub fn json(sources: &mut Sources, asked: &str) -> Result<Value, Refusal> {
    query::check(asked, &["since"])?;
    let since = query::since(asked, &Zoned::now())?.unwrap_or(0);
    let mut lines = round(sources, &mut Watch::new(None, false))?;
    lines.retain(|line| line.event.time_us / 1_000_000 >= since);
    let events = values(sources, &lines);
    Ok(json!({ "schema": SCHEMA, "events": events }))
}

/// Begins to collect events for streams, unless others have begun.
pub fn begin(sources: &mut Sources) {
    if sources.watch.is_none() {
        news(sources);
    }
}

/// Returns the events since the last call, each with its time. The first call returns none.
pub fn news(sources: &mut Sources) -> Vec<(String, Value)> {
    let is_first = sources.watch.is_none();
    let mut watch = sources
        .watch
        .take()
        .unwrap_or_else(|| Watch::new(None, true));
    // The next call reports what this one could not read.
    let lines = round(sources, &mut watch).unwrap_or_default();
    sources.watch = Some(watch);
    if is_first {
        return Vec::new();
    }
    let times = lines.iter().map(|line| line.time().to_string());
    times.zip(values(sources, &lines)).collect()
}

/// Reads the events that the scope shows.
fn round(sources: &mut Sources, watch: &mut Watch) -> Result<Vec<Line>, Failure> {
    let (mut lines, gone) = watch.round(&Selection::all()?)?;
    output::notes(&std::mem::take(&mut watch.notes.lines));
    watch.drop_gone(&gone);
    if sources.scope.public {
        let mut public = Public::default();
        lines.retain(|line| public.has(&line.root, &line.group));
    }
    Ok(lines)
}

fn values(sources: &mut Sources, lines: &[Line]) -> Vec<Value> {
    let with_processes = !sources.scope.public;
    let (driver, _) = sources.parts();
    lines
        .iter()
        .map(|line| line.json(driver, with_processes))
        .collect()
}

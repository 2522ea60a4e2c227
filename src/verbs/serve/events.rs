//! Events as JSON.

use super::query;
use super::reading::Public;
use super::refusal::Refusal;
use super::worker::Sources;
use crate::figures::event::{Line, watch::Watch};
use crate::groups::{SCHEMA, Selection};
use crate::shown::output;
use jiff::Zoned;
use serde_json::{Value, json};

/// Returns the events that the query asks for.
pub fn json(sources: &mut Sources, asked: &str) -> Result<Value, Refusal> {
    query::check(asked, &["since"])?;
    let since = query::since(asked, &Zoned::now())?.unwrap_or(0);
    let mut watch = Watch::new(None, false);
    let (mut lines, _) = watch.round(&Selection::all()?)?;
    output::notes(&watch.notes.lines);
    let mut public = Public::default();
    let mut is_shown = |line: &Line| !sources.scope.public || public.has(&line.root, &line.group);
    lines.retain(|line| line.last_us() / 1_000_000 >= since && is_shown(line));
    let with_processes = !sources.scope.public;
    let (driver, _) = sources.parts();
    let events = lines.iter().map(|line| line.json(driver, with_processes));
    Ok(json!({ "schema": SCHEMA, "events": events.collect::<Vec<_>>() }))
}

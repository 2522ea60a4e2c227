//! The JSON of the server: the state, the past and events.

use super::access::Refusal;
use super::query;
use super::reading::Public;
use super::worker::Sources;
use crate::figures::event::{Line, watch::Watch};
use crate::figures::past::{self, Past};
use crate::figures::{Figures, processes::Process, snapshot::GpuMemory};
use crate::groups::{SCHEMA, Selection, View, budget::SCRAPE, gpu};
use crate::machine::nvml::Driver;
use crate::shown::output;
use crate::words::clock::{self, Moment};
use gpulimit_base::device::DeviceId;
use gpulimit_group::Root;
use gpulimit_limits::Selector;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::time::Duration;

/// Reads the present state. Returns it with a tag that changes only with the state: two states that
/// differ in their time alone have the same one.
pub fn state(sources: &mut Sources) -> Result<(String, HeaderValue), Refusal> {
    let mut state = json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "time": null,
        "public": sources.scope.public,
    });
    let time = match &mut sources.machines {
        Some(machines) => {
            let (asked, told) = machines.read();
            fill(&mut state, &told.gpus, &told.groups, &told.processes, None);
            state["machines"] = asked.into_iter().collect();
            clock::now().timestamp()
        }
        None => {
            let reading = sources.reading_with_processes()?;
            let groups = reading.groups.iter().map(|group| &group.figures);
            // A public reading has no processes.
            let processes = reading.processes();
            fill(
                &mut state,
                &reading.gpus,
                groups,
                processes,
                sources.parts().0,
            );
            reading.time
        }
    };
    let text = state.to_string();
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    let time = format!("\"time\":\"{}\"", Moment::from(time));
    // Two states of a tag may differ in their time: the tag is a weak one.
    let tag = HeaderValue::try_from(format!("W/\"{:016x}\"", hasher.finish()));
    let tag = tag.map_err(|error| Refusal::unavailable(error.to_string()))?;
    // No text of others precedes the time.
    Ok((text.replacen("\"time\":null", &time, 1), tag))
}

fn fill<'a>(
    state: &mut Value,
    gpus: &[GpuMemory],
    groups: impl IntoIterator<Item = &'a Figures>,
    processes: &[Process],
    driver: Option<&Driver>,
) {
    let processes = processes.iter();
    state["gpus"] = gpus.iter().map(GpuMemory::json).collect();
    state["groups"] = groups.into_iter().map(Figures::json).collect();
    state["processes"] = processes.map(|process| process.json(driver)).collect();
}

/// The most periods in one answer, which are about 20 MB of JSON.
const MOST_PERIODS: usize = 100_000;

/// The length of a history without the key `since`.
const USUAL: Duration = Duration::from_secs(600);

/// Returns the histories that the query asks for.
pub fn history(sources: &mut Sources, asked: &str) -> Result<String, Refusal> {
    query::check(asked, &["since", "group", "root", "gpu"])?;
    let now = clock::now();
    let usual = past::second(now.timestamp()).saturating_sub(USUAL.as_secs());
    let since = query::since(asked, &now)?.unwrap_or(usual);
    let group = query::value(asked, "group");
    let root = query::value(asked, "root");
    let scope = sources.scope;
    sources.driver();
    let (driver, memory) = sources.parts();
    let device = match query::value(asked, "gpu") {
        Some(gpu) => match gpu.parse::<DeviceId>() {
            Ok(id) => Selector::Device(id),
            Err(_) => gpu::shown(&[gpu], driver)
                .map_err(|failure| Refusal::wrong(failure.to_string()))?[0],
        },
        None => Selector::All,
    };
    let missing = |why: String| Refusal::new(StatusCode::NOT_FOUND, why);
    let mut public = Public::default();
    let mut selection = Selection::all()?;
    selection.groups.retain(|one| {
        group.as_deref().is_none_or(|name| name == one.name())
            && root
                .as_deref()
                .is_none_or(|root| Path::new(root) == one.root())
            && (!scope.public || public.has(one.root(), one.name()))
    });
    if let (Some(group), []) = (&group, &selection.groups[..]) {
        return Err(missing(format!("there is no group '{group}'")));
    }
    if let Some(root) = &root {
        let mut roots = selection.roots().iter();
        let is_shown =
            |known: &Root| Path::new(root) == known.path() && (!scope.public || known.is_public());
        if !roots.any(is_shown) {
            return Err(missing(format!("there is no group root '{root}'")));
        }
    }
    let (mut histories, mut periods) = (Vec::new(), 0);
    let (_, cut) = selection.visit_once(SCRAPE, driver, |_, view: View| {
        if periods <= MOST_PERIODS {
            for mut past in Past::all(&view, &[device], since, now.timestamp(), driver, None) {
                if scope.public {
                    past.gpu.forget_process();
                }
                periods += past.spans.len();
                histories.push(past.json(driver));
            }
        }
    });
    memory.tell_cut(cut);
    match periods > MOST_PERIODS {
        true => Err(Refusal::wrong(format!(
            "the answer has more than {MOST_PERIODS} periods: ask for one group, or for a shorter \
             time"
        ))),
        false => Ok(json!({ "schema": SCHEMA, "histories": histories }).to_string()),
    }
}

/// Returns the events that the query asks for.
pub fn events(sources: &mut Sources, asked: &str) -> Result<String, Refusal> {
    query::check(asked, &["since"])?;
    let since = query::since(asked, &clock::now())?.unwrap_or(0);
    let mut watch = Watch::new(None, false);
    let (mut lines, _) = watch.round(&Selection::all()?)?;
    output::notes(&watch.notes.lines);
    let mut public = Public::default();
    let mut is_shown = |line: &Line| !sources.scope.public || public.has(&line.root, &line.group);
    lines.retain(|line| line.last_us() / 1_000_000 >= since && is_shown(line));
    let with_processes = !sources.scope.public;
    let (driver, _) = sources.parts();
    let events = lines.iter().map(|line| line.json(driver, with_processes));
    Ok(json!({ "schema": SCHEMA, "events": events.collect::<Vec<_>>() }).to_string())
}

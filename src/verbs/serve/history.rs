//! The past usage of groups as JSON.

use super::query;
use super::reading::Public;
use super::worker::Sources;
use crate::figures::past;
use crate::groups::{SCHEMA, Selection, View, budget::SCRAPE, gpu};
use crate::words::since;
use gpulimit_base::device::DeviceId;
use gpulimit_group::Root;
use gpulimit_limits::Selector;
use serde_json::{Value, json};
use std::path::Path;

/// The most periods in one answer, which are about 20 MB of JSON.
const MOST_PERIODS: usize = 100_000;

/// The keys of a query.
const KEYS: [&str; 4] = ["since", "group", "root", "gpu"];

/// Why a request cannot be answered.
pub enum Trouble {
    /// The request is wrong.
    Request(String),
    /// The group does not exist.
    Missing(String),
    /// The groups cannot be read.
    Server(String),
}

/// Returns the histories that the query asks for.
pub fn json(sources: &mut Sources, asked: &str) -> Result<Value, Trouble> {
    query::check(asked, &KEYS).map_err(Trouble::Request)?;
    let now = crate::words::clock::now();
    let text = query::value(asked, "since").unwrap_or_else(|| "10m".into());
    let since = since::parse(&text, &now)
        .map_err(|why| Trouble::Request(format!("invalid time '{text}': {why}")))?;
    let group = query::value(asked, "group");
    let root = query::value(asked, "root");
    let scope = sources.scope;
    sources.driver();
    let (driver, memory) = sources.parts();
    let device = match query::value(asked, "gpu") {
        Some(gpu) => match gpu.parse::<DeviceId>() {
            Ok(id) => Selector::Device(id),
            Err(_) => gpu::shown(&[gpu], driver)
                .map_err(|failure| Trouble::Request(failure.to_string()))?[0],
        },
        None => Selector::All,
    };
    let mut public = Public::default();
    let mut selection = Selection::all().map_err(|failure| Trouble::Server(failure.to_string()))?;
    selection.groups.retain(|one| {
        group.as_deref().is_none_or(|name| name == one.name())
            && root
                .as_deref()
                .is_none_or(|root| Path::new(root) == one.root())
            && (!scope.public || public.has(one.root(), one.name()))
    });
    if let (Some(group), []) = (&group, &selection.groups[..]) {
        return Err(Trouble::Missing(format!("there is no group '{group}'")));
    }
    if let Some(root) = &root {
        let mut roots = selection.roots().iter();
        let is_shown =
            |known: &Root| Path::new(root) == known.path() && (!scope.public || known.is_public());
        if !roots.any(is_shown) {
            return Err(Trouble::Missing(format!("there is no group root '{root}'")));
        }
    }
    let (mut histories, mut periods) = (Vec::new(), 0);
    let (_, cut) = selection.visit_once(SCRAPE, driver, |_, view: View| {
        if periods <= MOST_PERIODS {
            for one in past::json(&view, &[device], since, &now, driver) {
                periods += one["periods"].as_array().map_or(0, Vec::len);
                histories.push(one);
            }
        }
    });
    memory.tell_cut(cut);
    match periods > MOST_PERIODS {
        true => Err(Trouble::Request(format!(
            "the answer has more than {MOST_PERIODS} periods: ask for one group, or for a shorter \
             time"
        ))),
        false => Ok(json!({ "schema": SCHEMA, "histories": histories })),
    }
}

//! The past usage of groups as JSON.

use super::query;
use super::reading::Public;
use super::refusal::Refusal;
use super::worker::Sources;
use crate::figures::past::{self, Past};
use crate::groups::{SCHEMA, Selection, View, budget::SCRAPE, gpu};
use gpulimit_base::device::DeviceId;
use gpulimit_group::Root;
use gpulimit_limits::Selector;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The most periods in one answer, which are about 20 MB of JSON.
const MOST_PERIODS: usize = 100_000;

/// The length of a history without the key `since`.
const USUAL: Duration = Duration::from_secs(600);

/// The keys of a query.
const KEYS: [&str; 4] = ["since", "group", "root", "gpu"];

/// Returns the histories that the query asks for.
pub fn json(sources: &mut Sources, asked: &str) -> Result<Value, Refusal> {
    query::check(asked, &KEYS)?;
    let now = crate::words::clock::now();
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
            for mut past in Past::all(&view, &[device], since, now.timestamp(), driver) {
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
        false => Ok(json!({ "schema": SCHEMA, "histories": histories })),
    }
}

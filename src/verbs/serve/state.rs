//! The state as JSON: GPUs, groups and processes.

use super::worker::Sources;
use crate::figures::{Figures, snapshot::GpuMemory};
use crate::groups::SCHEMA;
use crate::words::{clock::Moment, failure::Failure};
use hyper::header::HeaderValue;
use serde_json::json;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Reads the present state. Returns it with a tag that changes only with the state: two states that
/// differ in their time alone have the same one.
pub fn read(sources: &mut Sources) -> Result<(String, HeaderValue), Failure> {
    let reading = sources.reading_with_processes()?;
    let scope = sources.scope;
    let (driver, _) = sources.parts();
    // A public reading has no processes.
    let processes = reading.processes().iter();
    let figures = reading.groups.iter().map(|group| &group.figures);
    let mut state = json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "time": null,
        "public": scope.public,
        "gpus": reading.gpus.iter().map(GpuMemory::json).collect::<Vec<_>>(),
        "groups": figures.map(Figures::json).collect::<Vec<_>>(),
        "processes": processes.map(|process| process.json(driver)).collect::<Vec<_>>(),
    });
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    state["time"] = Moment::from(reading.time).to_string().into();
    // The state is the same, byte for byte, except for its time: the tag is a weak one.
    let tag = HeaderValue::try_from(format!("W/\"{:016x}\"", hasher.finish()));
    let tag = tag.map_err(|error| Failure::new(error.to_string()))?;
    Ok((state.to_string(), tag))
}

//! The state as JSON: GPUs, groups and processes.

use super::worker::Sources;
use crate::figures::{Figures, snapshot::GpuMemory};
use crate::groups::SCHEMA;
use crate::words::{clock::Moment, failure::Failure};
use serde_json::json;

/// The state, and the part of it that changes only with the state.
pub struct State {
    head: String,
    /// The rest of the object, without its opening brace.
    pub rest: String,
}

impl State {
    /// Reads the present state.
    pub fn read(sources: &mut Sources) -> Result<Self, Failure> {
        let reading = sources.reading_with_processes()?;
        let scope = sources.scope;
        let (driver, _) = sources.parts();
        // A public reading has no processes.
        let processes = reading.processes().iter();
        let figures = reading.groups.iter().map(|group| &group.figures);
        let rest = json!({
            "gpus": reading.gpus.iter().map(GpuMemory::json).collect::<Vec<_>>(),
            "groups": figures.map(Figures::json).collect::<Vec<_>>(),
            "processes": processes.map(|process| process.json(driver)).collect::<Vec<_>>(),
        });
        let head = json!({
            "schema": SCHEMA,
            "version": env!("CARGO_PKG_VERSION"),
            "time": Moment::from(reading.time).to_string(),
            "public": scope.public,
        });
        let mut head = head.to_string();
        head.pop();
        Ok(Self {
            head,
            rest: rest.to_string().split_off(1),
        })
    }

    /// Returns the whole object.
    pub fn text(&self) -> String {
        format!("{},{}", self.head, self.rest)
    }
}

//! Rounds of `top` as JSON, with the names of `show --json` and `ps --json`.

use super::round::Round;
use crate::figures::{Figures, snapshot::GpuMemory};
use crate::groups::SCHEMA;
use crate::machine::nvml::Driver;
use crate::words::clock::Moment;
use gpulimit_base::device::DeviceId;
use serde_json::{Value, json};

/// Returns a round of the chosen GPUs as one object. `shows` returns whether a GPU was chosen.
pub fn round(round: &Round, driver: Option<&Driver>, shows: impl Fn(DeviceId) -> bool) -> Value {
    let processes = round.processes.iter();
    let processes = processes.filter(|it| it.gpu.as_ref().is_none_or(|(id, _)| shows(*id)));
    let gpus = round.gpus.iter().filter(|gpu| shows(gpu.id));
    json!({
        "schema": SCHEMA,
        "root": round.root,
        "time": Moment::from(round.time).to_string(),
        "gpus": gpus.map(GpuMemory::json).collect::<Vec<_>>(),
        "groups": round.groups.iter().map(Figures::json).collect::<Vec<_>>(),
        "processes": processes.map(|it| it.json(driver)).collect::<Vec<_>>(),
    })
}

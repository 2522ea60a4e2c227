//! The GPUs of the node, and the MIG instances of those that are cut, as NVML says.

use gpulimit_base::device::DeviceId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;

/// A GPU or MIG instance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Card {
    /// Which.
    pub id: DeviceId,
    /// Bytes that programs can have, without what the driver keeps for itself.
    pub memory: u64,
    /// Whether NVML still answers for it.
    pub healthy: bool,
}

/// NVML, and what it has said.
pub struct Cards {
    /// `None` after it has failed: it is loaded anew then.
    nvml: Option<Nvml>,
    found: Vec<Card>,
}

impl Cards {
    /// All that NVML lists and tells the size of.
    pub fn find() -> Result<Self, NvmlError> {
        let nvml = load()?;
        let mut found = Vec::new();
        for index in 0..nvml.device_count()? {
            // One that is broken is no reason to do without the others.
            match of_gpu(&nvml, index) {
                Ok(cards) => found.extend(cards),
                Err(error) => crate::say(format_args!("cannot use GPU {index}: {error}")),
            }
        }
        Ok(Self {
            nvml: Some(nvml),
            found,
        })
    }

    /// All, in NVML's order.
    pub fn all(&self) -> &[Card] {
        &self.found
    }

    /// Asks for each whether it is still there; whether an answer has changed.
    pub fn look(&mut self) -> bool {
        if self.nvml.is_none() {
            self.nvml = load().ok();
        }
        let nvml = self.nvml.as_ref();
        let answers = |card: &Card| {
            let answer = nvml?.device_by_uuid(card.id.to_string()).ok()?;
            answer.memory_info().ok()
        };
        let mut changed = false;
        for card in &mut self.found {
            let healthy = answers(card).is_some();
            changed |= healthy != card.healthy;
            card.healthy = healthy;
        }
        if self.found.iter().any(|card| !card.healthy) {
            self.nvml = None;
        }
        changed
    }
}

fn load() -> Result<Nvml, NvmlError> {
    // The plain name comes with development packages only.
    Nvml::builder()
        .lib_path(OsStr::new("libnvidia-ml.so.1"))
        .init()
}

fn of_gpu(nvml: &Nvml, index: u32) -> Result<Vec<Card>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let all = match instances(&device) {
        Some(instances) => instances.into_iter().collect::<Result<_, _>>()?,
        None => vec![device],
    };
    let cards = all.iter().map(card).collect::<Result<Vec<_>, _>>()?;
    Ok(cards.into_iter().flatten().collect())
}

/// `None` where its UUID is none of NVML's usual form.
fn card(device: &Device<'_>) -> Result<Option<Card>, NvmlError> {
    let Ok(id) = device.uuid()?.parse() else {
        return Ok(None);
    };
    let memory = device.memory_info()?;
    Ok(Some(Card {
        id,
        memory: memory.total.saturating_sub(memory.reserved),
        healthy: true,
    }))
}

/// The MIG instances of a GPU; `None` where it is not cut into any.
fn instances<'a>(gpu: &Device<'a>) -> Option<Vec<Result<Device<'a>, NvmlError>>> {
    const ENABLED: u32 = 1;
    if gpu.mig_mode().ok()?.current != ENABLED {
        return None;
    }
    // NVML numbers the places for instances, of which some are empty.
    let places = gpu.mig_device_count().unwrap_or(0);
    let instance = |place| match gpu.mig_device_by_index(place) {
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => None,
        found => Some(found),
    };
    Some((0..places).filter_map(instance).collect())
}

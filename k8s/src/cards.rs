//! Lists the GPUs of the node and, for GPUs that are split (MIG), their instances. The list comes
//! from NVML.

use gpulimit_base::device::DeviceId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;

/// A GPU or MIG instance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Card {
    /// The UUID of the GPU or instance.
    pub id: DeviceId,
    /// The bytes that programs can use: all memory of the card, without the driver's reserve.
    pub memory: u64,
    /// True while NVML answers queries about the card.
    pub healthy: bool,
}

/// The loaded NVML library and the cards that NVML lists.
pub struct Cards {
    /// `None` after NVML has failed; the plugin then loads NVML again.
    nvml: Option<Nvml>,
    found: Vec<Card>,
}

impl Cards {
    /// Lists all cards whose memory size NVML can tell.
    pub fn find() -> Result<Self, NvmlError> {
        let nvml = load()?;
        let mut found = Vec::new();
        for index in 0..nvml.device_count()? {
            // Skip a broken GPU, so that the other GPUs of the node can still be used.
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

    /// Returns all cards, in the order in which NVML lists them.
    pub fn all(&self) -> &[Card] {
        &self.found
    }

    /// Checks each card's health. Returns whether the health of any card has changed.
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
    // `libnvidia-ml.so` (without `.1`) exists only where development packages are installed.
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

/// Returns a GPU or MIG instance as a card; `None` if its UUID does not have NVML's usual form.
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

/// Returns the MIG instances of a GPU; `None` if the GPU is not split into instances.
fn instances<'a>(gpu: &Device<'a>) -> Option<Vec<Result<Device<'a>, NvmlError>>> {
    const ENABLED: u32 = 1;
    if gpu.mig_mode().ok()?.current != ENABLED {
        return None;
    }
    // NVML numbers the places for MIG instances on a GPU, and some places are empty.
    let places = gpu.mig_device_count().unwrap_or(0);
    let instance = |place| match gpu.mig_device_by_index(place) {
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => None,
        found => Some(found),
    };
    Some((0..places).filter_map(instance).collect())
}

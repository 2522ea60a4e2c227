//! Finds GPUs by index, PCI bus id or UUID, and MIG instances by UUID. The beginning of a UUID
//! suffices.

use crate::groups::{self, Selection};
use crate::machine::nvml::{Driver, Gpu};
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_limits::Selector;

/// The option `--device` of verbs that show figures.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Show only this GPU: index, UUID, start of the UUID, PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    pub names: Vec<String>,
}

/// Returns the GPU or MIG instance that `text` names. A full UUID needs no NVML.
///
/// Refuses a GPU that is split into MIG instances, where a limit would have no effect.
pub fn resolve(text: &str, driver: Option<&Driver>) -> Result<DeviceId, Failure> {
    match (driver, text.parse()) {
        (Some(driver), _) => find(text, driver.gpus()),
        (None, Ok(id)) => Ok(id),
        (None, Err(_)) => Err(Failure::usage(format_args!(
            "cannot find GPU '{}', because NVML (libnvidia-ml.so.1) does not answer: give the full \
             UUID, or run `gpulimit doctor`",
            text.escape_debug()
        ))),
    }
}

/// Returns the GPUs that the `--device` options name; without such options, `Selector::All`.
pub fn selectors(devices: &[String], driver: Option<&Driver>) -> Result<Vec<Selector>, Failure> {
    selected(devices, |text| resolve(text, driver))
}

/// Returns the GPUs that the `--device` options name, as [`selectors`] does, for verbs that show
/// figures. Accepts the labels of GPUs that only groups know, too: NVML does not list a lost GPU.
pub fn shown(devices: &[String], driver: Option<&Driver>) -> Result<Vec<Selector>, Failure> {
    selected(devices, |text| {
        resolve(text, driver).or_else(|failure| known_to_groups(text, driver).ok_or(failure))
    })
}

fn selected(
    devices: &[String],
    find: impl Fn(&str) -> Result<DeviceId, Failure>,
) -> Result<Vec<Selector>, Failure> {
    let selector = |device: &String| match device.as_str() {
        "all" => Ok(Selector::All),
        device => find(device).map(Selector::Device),
    };
    match devices.is_empty() {
        true => Ok(vec![Selector::All]),
        false => devices.iter().map(selector).collect(),
    }
}

/// Returns the only GPU that NVML does not list, that a group has used, and that has this label or
/// beginning of a UUID.
fn known_to_groups(text: &str, driver: Option<&Driver>) -> Option<DeviceId> {
    let text = text.trim_end_matches('…');
    let is_listed = |driver: &Driver| all(driver.gpus()).any(|(_, id)| id.matches(text));
    let is_index = text.bytes().all(|c| c.is_ascii_digit());
    if is_index || driver.is_some_and(is_listed) {
        return None;
    }
    let selection = Selection::all().ok()?;
    let mut found = Vec::new();
    for group in &selection.groups {
        if let Ok(Some(ledger)) = groups::readable(group) {
            let ids = ledger.devices().into_iter().map(|device| device.id);
            found.extend(ids.filter(|id| id.matches(text)));
        }
    }
    let first = *found.first()?;
    found.iter().all(|id| *id == first).then_some(first)
}

fn find(text: &str, gpus: &[Gpu]) -> Result<DeviceId, Failure> {
    let is_index = text.bytes().all(|c| c.is_ascii_digit());
    let is_named = |(gpu, id): &(&Gpu, DeviceId)| match (is_index, *id == gpu.id) {
        (true, is_whole) => is_whole && text.parse() == Ok(gpu.index),
        (false, is_whole) => id.matches(text) || is_whole && same_bus(text, &gpu.bus),
    };
    let found: Vec<_> = all(gpus).filter(is_named).collect();
    match found[..] {
        [(gpu, id)] if id == gpu.id && gpu.instances.is_some() => Err(cut(gpu)),
        [(_, id)] => Ok(id),
        [] => Err(unknown(text, gpus)),
        _ => Err(Failure::usage(format_args!(
            "'{name}' names more than one GPU: {gpus}",
            name = text.escape_debug(),
            gpus = list(found)
        ))),
    }
}

fn cut(gpu: &Gpu) -> Failure {
    let instances = gpu.instances.iter().flatten().map(|id| (gpu, *id));
    let instances = list(instances.collect());
    Failure::usage(format_args!(
        "GPU {} ({}) is split into MIG instances, and only these can have limits: {}a limit \
         without --device applies to each instance",
        gpu.index,
        gpu.id,
        if instances.is_empty() {
            "the GPU has no instances yet; ".to_owned()
        } else {
            format!("name one of the instances ({instances}); ")
        }
    ))
}

fn unknown(text: &str, gpus: &[Gpu]) -> Failure {
    Failure::usage(format_args!(
        "unknown GPU '{}' (known: {}): give an index, a UUID or its beginning, or a PCI bus id",
        text.escape_debug(),
        if gpus.is_empty() {
            "none".into()
        } else {
            list(all(gpus).collect())
        }
    ))
}

/// Returns all GPUs, each before its MIG instances.
fn all(gpus: &[Gpu]) -> impl Iterator<Item = (&Gpu, DeviceId)> {
    gpus.iter().flat_map(|gpu| {
        let ids = [gpu.id].into_iter();
        ids.chain(gpu.instances.iter().flatten().copied())
            .map(move |id| (gpu, id))
    })
}

/// Lists GPUs by index and UUID, and MIG instances by UUID.
fn list(found: Vec<(&Gpu, DeviceId)>) -> String {
    let names = found.into_iter().map(|(gpu, id)| match id == gpu.id {
        true => format!("{} ({id})", gpu.index),
        false => id.to_string(),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Returns whether two PCI bus ids name the same device. In the first id, a missing domain means
/// domain 0.
fn same_bus(text: &str, bus: &str) -> bool {
    let place = |text: &str| {
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        Some([
            number(domain)?,
            number(bus)?,
            number(device)?,
            number(function)?,
        ])
    };
    place(text).is_some_and(|wanted| place(bus) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_base::device::DeviceKind;

    fn gpus() -> Vec<Gpu> {
        let gpu = |index: u8, bus: &str| Gpu {
            index: index.into(),
            id: DeviceId::gpu([index + 1, 0x2b, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]),
            bus: bus.into(),
            name: "Test".into(),
            capacity: Some(80 << 30),
            shares_host: false,
            instances: None,
        };
        vec![gpu(0, "00000000:3B:00.0"), gpu(1, "00000001:3B:00.0")]
    }

    #[test]
    fn a_gpu_is_found_by_each_kind_of_name() {
        let gpus = gpus();
        for text in [
            "0",
            "GPU-012b",
            "gpu-01",
            "012b0707",
            "0000:3b:00.0",
            "3b:00.0",
            "00000000:3B:00.0",
        ] {
            assert_eq!(find(text, &gpus).expect(text), gpus[0].id, "{text}");
        }
        assert_eq!(find("1:3b:00.0", &gpus).expect("found"), gpus[1].id);
    }

    #[test]
    fn unknown_and_ambiguous_names_list_the_gpus() {
        for text in ["2", "GPU-ff", "", "MIG-01", "3c:00.0", "4294967296"] {
            let error = find(text, &gpus()).expect_err(text).to_string();
            assert!(
                error.contains("GPU-012b0707") && error.contains(text),
                "{error}"
            );
        }
        let error = find("GPU-0", &gpus()).expect_err("unclear").to_string();
        assert!(error.contains("more than one"), "{error}");
    }

    #[test]
    fn a_split_gpu_is_named_by_its_instances() {
        let mut gpus = gpus();
        let instances = [3, 4].map(|first| DeviceId {
            kind: DeviceKind::Mig,
            ..DeviceId::gpu([first; 16])
        });
        gpus[0].instances = Some(instances.to_vec());
        for text in ["0", "GPU-012b", "3b:00.0", &gpus[0].id.to_string()] {
            let error = find(text, &gpus).expect_err(text).to_string();
            assert!(error.contains("GPU 0 (GPU-012b0707"), "{error}");
            assert!(
                instances.iter().all(|id| error.contains(&id.to_string())),
                "{error}"
            );
            assert!(error.contains("without --device"), "{error}");
        }
        assert_eq!(find("1", &gpus).expect("whole"), gpus[1].id);
        for text in [&*instances[1].to_string(), "MIG-04", "mig-0404"] {
            assert_eq!(find(text, &gpus).expect(text), instances[1], "{text}");
        }
        let error = find("MIG-0", &gpus).expect_err("unclear").to_string();
        assert!(error.contains("more than one"), "{error}");
        let error = find("MIG-05", &gpus).expect_err("unknown").to_string();
        assert!(error.contains(&instances[0].to_string()), "{error}");
        gpus[0].instances = Some(Vec::new());
        let error = find("0", &gpus).expect_err("empty").to_string();
        assert!(error.contains("has no instances yet"), "{error}");
    }

    #[test]
    fn without_nvml_only_a_full_uuid_is_accepted() {
        let id = gpus()[0].id;
        assert_eq!(resolve(&id.to_string(), None).expect("full"), id);
        assert!(
            resolve("0", None)
                .expect_err("unknown")
                .to_string()
                .contains("doctor")
        );
    }
}

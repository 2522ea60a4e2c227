//! GPUs as people name them: by index, UUID, the beginning of a UUID, or PCI bus id.

use super::failure::Failure;
use super::nvml::{Driver, Gpu};
use gpulimit::device::DeviceId;
use gpulimit::limits::Selector;

/// The GPU that `text` names. A full UUID needs no driver.
pub fn resolve(text: &str, driver: Option<&Driver>) -> Result<DeviceId, Failure> {
    if let Ok(id) = text.parse() {
        return match driver {
            Some(driver) if !driver.gpus().iter().any(|gpu| gpu.id == id) && !is_mig(text) => {
                Err(unknown(text, driver.gpus()))
            }
            _ => Ok(id),
        };
    }
    let Some(driver) = driver else {
        return Err(Failure::usage(format_args!(
            "cannot tell which GPU '{}' is, as NVML (libnvidia-ml.so.1) does not answer: give the full UUID, or see `gpulimit doctor`",
            text.escape_debug()
        )));
    };
    find(text, driver.gpus())
}

/// The rules that `--device` options mean; all GPUs where there are none.
pub fn selectors(devices: &[String], driver: Option<&Driver>) -> Result<Vec<Selector>, Failure> {
    if devices.is_empty() {
        return Ok(vec![Selector::All]);
    }
    let selector = |device: &String| match device.as_str() {
        "all" => Ok(Selector::All),
        device => resolve(device, driver).map(Selector::Device),
    };
    devices.iter().map(selector).collect()
}

fn is_mig(text: &str) -> bool {
    text.get(..4)
        .is_some_and(|kind| kind.eq_ignore_ascii_case("MIG-"))
}

fn find(text: &str, gpus: &[Gpu]) -> Result<DeviceId, Failure> {
    let fits = |gpu: &&Gpu| {
        if text.bytes().all(|c| c.is_ascii_digit()) {
            text.parse() == Ok(gpu.index)
        } else {
            same_bus(text, &gpu.bus) || gpu.id.matches(text)
        }
    };
    let found: Vec<&Gpu> = gpus.iter().filter(fits).collect();
    match found[..] {
        [gpu] => Ok(gpu.id),
        [] => Err(unknown(text, gpus)),
        _ => Err(Failure::usage(format_args!(
            "'{}' is the beginning of more than one GPU: {}",
            text.escape_debug(),
            list(&found)
        ))),
    }
}

fn unknown(text: &str, gpus: &[Gpu]) -> Failure {
    let all: Vec<&Gpu> = gpus.iter().collect();
    Failure::usage(format_args!(
        "no GPU '{}': there is {}; give an index, a UUID or its beginning, or a PCI bus id",
        text.escape_debug(),
        if all.is_empty() {
            "none".into()
        } else {
            list(&all)
        }
    ))
}

fn list(gpus: &[&Gpu]) -> String {
    let names: Vec<String> = gpus
        .iter()
        .map(|gpu| format!("{} ({})", gpu.index, gpu.id))
        .collect();
    names.join(", ")
}

/// Whether both are the same place on the bus, with or without the domain, which people leave out.
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

    fn gpus() -> Vec<Gpu> {
        let gpu = |index: u8, bus: &str| Gpu {
            index: index.into(),
            id: DeviceId::gpu([index + 1, 0x2b, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]),
            bus: bus.into(),
            name: "Test".into(),
            capacity: Some(80 << 30),
        };
        vec![gpu(0, "00000000:3B:00.0"), gpu(1, "00000001:3B:00.0")]
    }

    #[test]
    fn every_way_to_name_one() {
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
    fn unknown_and_unclear_ones_are_listed() {
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
    fn without_nvml_only_a_full_uuid() {
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

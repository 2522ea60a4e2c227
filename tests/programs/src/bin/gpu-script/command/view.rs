//! The GPUs and the size of their memory, as CUDA and NVML report them.

use super::narrow::{Narrow, dirty};
use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, _scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "info" => {
            let (mut free, mut total) = (0usize, 0usize);
            let places = [&raw mut free as usize, &raw mut total as usize];
            let status = driver.call("cuMemGetInfo_v2", &places);
            format!("{} {free} {total}", plain(status))
        }
        "total" => {
            let (status, bytes) = driver.get("cuDeviceTotalMem_v2", &[words.gpu(1)?]);
            format!("{} {bytes}", plain(status))
        }
        "name" => {
            let mut text = [0u8; 64];
            let arguments = [text.as_mut_ptr() as usize, text.len(), words.gpu(1)?];
            let status = driver.call("cuDeviceGetName", &arguments);
            let text = String::from_utf8_lossy(&text);
            format!("{} {}", plain(status), text.trim_end_matches('\0'))
        }
        "attribute" => {
            let (status, value) =
                driver.get("cuDeviceGetAttribute", &[words.size(1)?, words.gpu(2)?]);
            format!("{} {value}", plain(status))
        }
        "info-v1" => {
            let (mut free, mut total) = (Narrow::new(), Narrow::new());
            let status = driver.call("cuMemGetInfo", &[free.place(), total.place()]);
            format!("{} {} {}", plain(status), free.value()?, total.value()?)
        }
        "total-v1" => {
            let mut bytes = Narrow::new();
            let gpu = dirty(words.gpu(1)?);
            let status = driver.call("cuDeviceTotalMem", &[bytes.place(), gpu]);
            format!("{} {}", plain(status), bytes.value()?)
        }
        "bus" => {
            let mut text = [0u8; 16];
            let arguments = [text.as_mut_ptr() as usize, text.len(), words.gpu(1)?];
            let status = driver.call("cuDeviceGetPCIBusId", &arguments);
            let text = String::from_utf8_lossy(&text);
            format!("{} {}", plain(status), text.trim_end_matches('\0'))
        }
        "nvml" => memory(driver, device(driver, words.at(1)?)?),
        "nvml-own" => own(driver, device(driver, words.at(1)?)?),
        "nvml-shutdown" => plain(driver.call("nvmlShutdown", &[])),
        "processes" => processes(driver, words)?,
        _ => return Ok(None),
    }))
}

/// Returns NVML's handle of a GPU by its number, or of instance I of GPU G by `G.I`.
fn device(driver: &Driver, name: &str) -> Answer<(i32, usize)> {
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("no GPU {name}"));
    let (gpu, instance) = match name.split_once('.') {
        None => (number(name)?, None),
        Some((gpu, instance)) => (number(gpu)?, Some(number(instance)?)),
    };
    let init = driver.call("nvmlInit_v2", &[]);
    let (mut device, mut part) = (0usize, 0usize);
    let place = &raw mut device as usize;
    driver.call("nvmlDeviceGetHandleByIndex_v2", &[gpu, place]);
    if let Some(instance) = instance {
        let place = &raw mut part as usize;
        driver.call(
            "nvmlDeviceGetMigDeviceHandleByIndex",
            &[device, instance, place],
        );
        device = part;
    }
    Ok((init, device))
}

/// Returns NVML's memory figures of a device by both versions of the call: total, reserved, free
/// and used.
fn memory(driver: &Driver, (init, device): (i32, usize)) -> String {
    let (mut one, mut two) = ([0u64; 3], [0u64; 5]);
    let first = driver.call(
        "nvmlDeviceGetMemoryInfo",
        &[device, one.as_mut_ptr() as usize],
    );
    two[0] = 0x0200_0028;
    let second = driver.call(
        "nvmlDeviceGetMemoryInfo_v2",
        &[device, two.as_mut_ptr() as usize],
    );
    let [total, free, used] = one;
    let [_, total2, reserved2, free2, used2] = two;
    format!("{init} {first} {total} {free} {used} {second} {total2} {reserved2} {free2} {used2}")
}

/// Returns NVML's figure for this process on a device.
fn own(driver: &Driver, (_, device): (i32, usize)) -> String {
    let (status, _, list) = list(driver, device, "Compute", "v3", (true, 64));
    let own = u64::from(std::process::id());
    let bytes = list.iter().find(|process| process[0] == own);
    format!("{status} {}", bytes.map_or(0, |process| process[1]))
}

/// Returns the status, the number of processes, and pid and bytes of each, sorted by pid.
fn processes(driver: &Driver, words: &Words<'_>) -> Answer<String> {
    let (_, device) = device(driver, words.at(1)?)?;
    let room = match words.at(4)?.strip_prefix("nowhere-") {
        Some(count) => (false, count.parse().map_err(|_| "no number")?),
        None => (true, words.size(4)?),
    };
    let (status, count, mut list) = list(driver, device, words.at(2)?, words.at(3)?, room);
    list.sort_unstable();
    let shown: String = list
        .iter()
        .map(|[pid, bytes]| format!(" {pid} {bytes}"))
        .collect();
    Ok(format!("{} {count}{shown}", plain(status)))
}

/// Returns the status, the number, and pid and bytes of the processes that NVML wrote. `room` says
/// whether the call passes a buffer, and how many entries it claims to hold.
fn list(
    driver: &Driver,
    device: usize,
    kind: &str,
    version: &str,
    (there, room): (bool, usize),
) -> (i32, u32, Vec<[u64; 2]>) {
    // The width of an entry in words of 8 bytes.
    let width = match version {
        "v1" => 2,
        "v2" | "v3" => 3,
        _ => 4,
    };
    const NOT_WRITTEN: u64 = 0xa5a5_a5a5_a5a5_a5a5;
    let mut words = vec![NOT_WRITTEN; (room + 1) * width];
    let place = match there {
        true => words.as_mut_ptr() as usize,
        false => 0,
    };
    let mut count = room as u32;
    let status = if version == "details" {
        let mode = ["Compute", "Graphics", "MPSCompute"]
            .iter()
            .position(|name| *name == kind)
            .unwrap_or(9);
        let mut list = [
            0x0100_0018 | (mode as u64) << 32,
            count.into(),
            place as u64,
        ];
        let arguments = [device, list.as_mut_ptr() as usize];
        let status = driver.call("nvmlDeviceGetRunningProcessDetailList", &arguments);
        count = list[1] as u32;
        status
    } else {
        let suffix = match version {
            "v1" => "",
            "v2" => "_v2",
            _ => "_v3",
        };
        let name = format!("nvmlDeviceGet{kind}RunningProcesses{suffix}");
        driver.call(&name, &[device, &raw mut count as usize, place])
    };
    let written = words.chunks(width).filter(|one| one[1] != NOT_WRITTEN);
    let list = written.map(|one| [one[0] & 0xffff_ffff, one[1]]).collect();
    (status, count, list)
}

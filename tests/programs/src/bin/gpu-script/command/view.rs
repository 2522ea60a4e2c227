//! How much memory there is.

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
        "nvml" => nvml(driver, words.gpu(1)?)?,
        "nvml-own" => nvml_own(driver, words.gpu(1)?)?,
        _ => return Ok(None),
    }))
}

/// What NVML says of a GPU: both versions of the call, total, reserved, free and used.
fn nvml(driver: &Driver, gpu: usize) -> Answer<String> {
    let init = driver.call("nvmlInit_v2", &[]);
    let mut device = 0usize;
    let place = &raw mut device as usize;
    driver.call("nvmlDeviceGetHandleByIndex_v2", &[gpu, place]);
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
    Ok(format!(
        "{init} {first} {total} {free} {used} {second} {total2} {reserved2} {free2} {used2}"
    ))
}

/// What NVML says that this process uses of a GPU.
fn nvml_own(driver: &Driver, gpu: usize) -> Answer<String> {
    driver.call("nvmlInit_v2", &[]);
    let mut device = 0usize;
    let place = &raw mut device as usize;
    driver.call("nvmlDeviceGetHandleByIndex_v2", &[gpu, place]);
    let (mut count, mut infos) = (64u32, [[0u64; 3]; 64]);
    let status = driver.call(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        &[device, &raw mut count as usize, infos.as_mut_ptr() as usize],
    );
    let own = u64::from(std::process::id());
    let bytes = infos
        .iter()
        .take(count as usize)
        .find(|info| info[0] & 0xffff_ffff == own)
        .map_or(0, |info| info[1]);
    Ok(format!("{status} {bytes}"))
}

//! NVML's lists of the processes that hold GPU memory.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use gpulimit_sim::abi::{Out, linger};
use gpulimit_sim::device;
use gpulimit_sim::machine::Machine;
use gpulimit_sim::process::{self, Holder, Viewer};

use crate::code::{Answer, Code};
use crate::device::{Unit, instance_ids, open};
use crate::own;

/// NVML's process lists, with the numbers of `nvmlProcessMode_t`.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Compute = 0,
    Graphics = 1,
    Mps = 2,
}

/// Bytes of a `nvmlProcessInfo_v1_t`.
const V1: usize = 16;
/// Bytes of a `nvmlProcessInfo_v2_t`.
const V2: usize = 24;
/// Bytes of a `nvmlProcessDetail_v1_t`. The `_v3` functions of the first R535 drivers also write
/// this element.
const DETAIL: usize = 32;

/// Returns one of NVML's process lists: the pid, the device and the bytes of each process.
fn listed(machine: &Machine, unit: Unit, mode: Mode) -> Vec<(u32, usize, u64)> {
    let knobs = &machine.knobs;
    let is_empty = mode != Mode::Compute && knobs.all_lists.load(Relaxed) == 0;
    if is_empty || knobs.no_proc.load(Relaxed) != 0 {
        return Vec::new();
    }
    let Some(viewer) = &Viewer::own() else {
        return Vec::new();
    };
    let holders = process::holders(machine);
    let held = |device: usize| {
        let is_shown = move |holder: &&Holder| {
            holder.held[device] > 0 && holder.has_context[device] && !holder.restoring
        };
        let of_device = holders.iter().filter(is_shown);
        of_device.filter_map(move |holder| Some((viewer.pid(holder)?, device, holder.held[device])))
    };
    unit.devices(machine).flat_map(held).collect()
}

/// Reads a wrong number for NVML to report from an environment variable. A library that replaces
/// NVML might report such numbers.
fn pretence(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Writes a process list. If the caller's buffer is too small, writes no elements, only the number
/// of elements that there are.
fn list(handle: usize, count: Out<u32>, infos: Out<u8>, mode: Mode, stride: usize) -> Answer {
    let (machine, unit) = open(handle)?;
    let room = count.read()? as usize;
    if room > 0 && infos.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut listed = listed(machine, unit, mode);
    if let Some(figure) = pretence("GPULIMIT_SIM_NVML_FIGURE") {
        listed.iter_mut().for_each(|(_, _, bytes)| *bytes = figure);
    }
    if let Some(many) = pretence("GPULIMIT_SIM_NVML_COUNT") {
        count.put(many as u32)?;
        return Err(Code::INSUFFICIENT_SIZE);
    }
    count.put(listed.len() as u32)?;
    if listed.len() > room {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    for (at, (pid, device, bytes)) in listed.into_iter().enumerate() {
        let info = infos.at(at * stride);
        info.cast().put(pid)?;
        info.at(8).cast().put(bytes)?;
        if stride >= V2 {
            info.at(16).cast().put(instance_ids(machine, device))?;
        }
        if stride >= DETAIL {
            // The bytes of protected memory are always 0.
            info.at(24).cast().put(0u64)?;
        }
    }
    if mode == Mode::Compute {
        linger(machine, "nvmlDeviceGetComputeRunningProcesses");
    }
    Ok(())
}

fn v3_stride(handle: usize) -> Result<usize, Code> {
    let (machine, _) = open(handle)?;
    Ok(match machine.knobs.early_535.load(Relaxed) {
        0 => V2,
        _ => DETAIL,
    })
}

pub fn compute_v1(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, Mode::Compute, V1)
}

pub fn compute_v2(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    let name = c"nvmlDeviceGetComputeRunningProcesses_v3";
    own::list(name, handle, count, infos)
        .unwrap_or_else(|| list(handle, count, infos, Mode::Compute, V2))
}

pub fn compute_v3(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, Mode::Compute, v3_stride(handle)?)
}

pub fn graphics_v1(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, Mode::Graphics, V1)
}

pub fn graphics_v2(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    let name = c"nvmlDeviceGetGraphicsRunningProcesses_v3";
    own::list(name, handle, count, infos)
        .unwrap_or_else(|| list(handle, count, infos, Mode::Graphics, V2))
}

pub fn graphics_v3(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, Mode::Graphics, v3_stride(handle)?)
}

pub fn mps_v1(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, Mode::Mps, V1)
}

pub fn mps_v2(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    let name = c"nvmlDeviceGetMPSComputeRunningProcesses_v3";
    own::list(name, handle, count, infos)
        .unwrap_or_else(|| list(handle, count, infos, Mode::Mps, V2))
}

pub fn mps_v3(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, Mode::Mps, v3_stride(handle)?)
}

/// Writes an `nvmlProcessUtilizationSample_t` for each process: the processes of a GPU share the
/// time in which it is busy evenly. A process that does nothing has a sample, too.
pub fn utilization(handle: usize, samples: Out<u8>, count: Out<u32>, _since: u64) -> Answer {
    /// Bytes of a sample: pid, time in microseconds since 1970, and four shares in percent.
    const SAMPLE: usize = 32;
    let (machine, unit) = open(handle)?;
    let Unit::Gpu(gpu) = unit else {
        return Err(Code::NOT_SUPPORTED);
    };
    if device::instances(machine) > 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let listed = listed(machine, unit, Mode::Compute);
    let Some(parts) = u32::try_from(listed.len()).ok().filter(|parts| *parts > 0) else {
        return Err(Code::NOT_FOUND);
    };
    let room = count.read()?;
    count.put(parts)?;
    if samples.is_null() || room < parts {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_micros() as u64);
    let busy = machine.knobs.busy[gpu].load(Relaxed) / parts;
    for (at, (pid, ..)) in listed.into_iter().enumerate() {
        let sample = samples.at(at * SAMPLE);
        sample.cast().put(pid)?;
        sample.at(8).cast().put(now)?;
        sample.at(16).cast().put([busy, busy / 2, 0, 0])?;
    }
    Ok(())
}

/// Writes the processes into an `nvmlProcessDetailList_v1_t`: version, mode, number of elements,
/// elements.
pub fn details(handle: usize, details: Out<u8>) -> Answer {
    open(handle)?;
    if details.cast::<u32>().read()? != 0x0100_0018 {
        return Err(Code::VERSION_MISMATCH);
    }
    let mode = match details.at(4).cast::<u32>().read()? {
        0 => Mode::Compute,
        1 => Mode::Graphics,
        2 => Mode::Mps,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    let infos = details.at(16).cast::<Out<u8>>().read()?;
    list(handle, details.at(8).cast(), infos, mode, DETAIL)
}

//! The driver functions that return an amount of GPU memory, answered with the group's figures.
//!
//! Total is the smallest limit of the group and its parents. Free is what this process can still
//! get.

use gpulimit_base::device::DeviceKind;

use crate::abi::{
    CUDA_ERROR_NOT_INITIALIZED, Device as Ordinal, NVML_ERROR_NOT_SUPPORTED, NVML_MEMORY_V2,
    NvmlDevice, NvmlMemory, NvmlMemoryV2, Out, SUCCESS, Status,
};
use crate::account::device::Device;
use crate::driver::figures;
use crate::driver::{Real, answer, cuda, nvml};
use crate::handler::Call;
use crate::membership;

/// `cuMemGetInfo_v2`: Total is the smallest limit among the group and its parents. Free is what
/// this process could get.
pub fn mem_get_info(call: Call, real: &dyn Real, free: Out<usize>, total: Out<usize>) -> Status {
    let status = real.call();
    if status == SUCCESS
        && let Some((device, max, keep)) = limited(call.process.current_device())
    {
        device.book.clean();
        let machine = device.host_free().or(free.read().map(|free| free as u64));
        let machine = machine.unwrap_or(0).saturating_sub(keep);
        free.write(clamp(device.book.free().min(machine).min(device.capacity)));
        total.reduce(clamp(max));
    }
    status
}

/// `cuMemGetInfo`: Answered like `cuMemGetInfo_v2`, with 32-bit figures. A figure that does not fit
/// becomes the largest 32-bit number.
pub fn mem_get_info_v1(call: Call, real: &dyn Real, free: Out<u32>, total: Out<u32>) -> Status {
    let status = real.call();
    if status == SUCCESS
        && let Some((device, max, keep)) = limited(call.process.current_device())
    {
        device.book.clean();
        // Asks the 64-bit function, because the 32-bit function can cut off the upper half of a
        // number.
        let (mut real_free, mut real_total) = (0, 0);
        if cuda::cuMemGetInfo_v2(Out::of(&mut real_free), Out::of(&mut real_total)) == SUCCESS {
            let left = (real_free as u64).saturating_sub(keep);
            free.write(clamp_v1(device.book.free().min(left)));
            total.write(clamp_v1(max.min(real_total as u64)));
        }
    }
    status
}

/// `cuDeviceTotalMem_v2`: Returns the smallest limit among the group and its parent groups.
pub fn device_total_mem(call: Call, real: &dyn Real, bytes: Out<usize>, device: Ordinal) -> Status {
    let status = real.call();
    if status == SUCCESS
        && let Some((_, max, _)) = limited(call.process.device(device))
    {
        bytes.reduce(clamp(max));
    }
    status
}

/// `cuDeviceTotalMem`: Answered like `cuDeviceTotalMem_v2`, with a 32-bit figure. A figure that
/// does not fit becomes the largest 32-bit number.
pub fn device_total_mem_v1(
    call: Call,
    real: &dyn Real,
    bytes: Out<u32>,
    device: Ordinal,
) -> Status {
    let status = real.call();
    if status == SUCCESS
        && let Some((_, max, _)) = limited(call.process.device(device))
    {
        let mut total = 0;
        if cuda::cuDeviceTotalMem_v2(Out::of(&mut total), device) == SUCCESS {
            bytes.write(clamp_v1(max.min(total as u64)));
        }
    }
    status
}

/// Returns the device with the group's limit on it and with what the group keeps free; `None` if
/// the group sets neither on the device.
fn limited(device: Result<&'static Device, Status>) -> Option<(&'static Device, u64, u64)> {
    let device = device.ok()?;
    let (max, keep) = (device.book.group.max(), device.book.keep_free());
    (max != u64::MAX || keep > 0).then_some((device, max, keep))
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn clamp_v1(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Returns the memory of the device that the program sees, and the free part of it; `None` without
/// a limit. `machine` has the memory of the whole device, and `free` the free part of that.
fn total_and_free(call: Call, device: NvmlDevice, machine: u64, free: u64) -> Option<(u64, u64)> {
    let [max, charged, _, _, keep] = figures_of(call, device, machine)?;
    let total = max.min(machine);
    let left = total.saturating_sub(charged);
    match keep {
        0 => (max < machine).then_some((total, left)),
        _ => Some((total, left.min(free.saturating_sub(keep)))),
    }
}

/// Returns the group's limit, its charge, its usage, the memory that CUDA shows of the device, and
/// what the group keeps free there. `total` is the memory of the whole device.
fn figures_of(call: Call, device: NvmlDevice, total: u64) -> Option<[u64; 5]> {
    let id = figures::identify(device)?;
    // A GPU that is divided by MIG has no limit: limits apply to its MIG instances.
    if id.kind == DeviceKind::Gpu && figures::is_cut(device) {
        return None;
    }
    let member = call.process.member();
    if let Err(status) = member
        && status != CUDA_ERROR_NOT_INITIALIZED
    {
        return None;
    }
    // A percentage is a share of the memory that CUDA shows, without the driver's reserved part.
    let mut memory = NvmlMemoryV2 {
        version: NVML_MEMORY_V2,
        ..NvmlMemoryV2::default()
    };
    let reserved = match nvml::nvmlDeviceGetMemoryInfo_v2(device, Out::of(&mut memory)) {
        SUCCESS => memory.reserved,
        _ => 0,
    };
    let capacity = total.saturating_sub(reserved);
    let (max, charged, used, keep) = match member {
        Ok(member) => {
            let device = member.device(id, capacity).ok()?;
            device.clean_at_times(&figures::ProcessList);
            let (max, used) = device.limit_and_usage();
            let keep = device.keep_free().map_or(0, |(keep, _)| keep);
            (max, device.charged(), used, keep)
        }
        // CUDA has not numbered the GPUs yet. The only GPU of a machine has the ordinal 0.
        Err(_) => {
            let is_only =
                id.kind == DeviceKind::Gpu && answer(nvml::nvmlDeviceGetCount_v2) == Ok(1);
            let (max, charged) = membership::outlook(id, is_only.then_some(0), capacity)?;
            (max, charged, charged, 0)
        }
    };
    Some([max, charged, used, capacity, keep])
}

/// Returns what [`figures_of`] does, and the free bytes of the device, before CUDA has numbered the
/// GPUs.
pub fn before_cuda(call: Call, device: NvmlDevice) -> Option<([u64; 5], u64)> {
    let memory: NvmlMemory = answer(|memory| nvml::nvmlDeviceGetMemoryInfo(device, memory)).ok()?;
    Some((figures_of(call, device, memory.total)?, memory.free))
}

/// Returns true only if the device behind an NVML handle certainly has no limit. Returns false if
/// that is unknown.
pub fn is_unlimited(call: Call, device: NvmlDevice) -> bool {
    let mut memory = NvmlMemory::default();
    let status = nvml::nvmlDeviceGetMemoryInfo(device, Out::of(&mut memory));
    let machine = machine(call, device, status, memory.total, memory.free);
    machine.is_some_and(|(total, _)| {
        !figures::is_cut(device)
            && figures_of(call, device, total).is_none_or(|[max, ..]| max >= total)
    })
}

/// Returns the total and the free memory of the whole device, after NVML's answer about it: the
/// same, or if the GPU shares the host's memory, what this process knows. `None` if unknown.
#[inline(never)]
fn machine(
    call: Call,
    device: NvmlDevice,
    status: Status,
    total: u64,
    free: u64,
) -> Option<(u64, u64)> {
    match status {
        SUCCESS => Some((total, free)),
        NVML_ERROR_NOT_SUPPORTED => {
            let id = figures::identify(device)?;
            let known = call.process.devices().find(|known| known.id == id)?;
            Some((known.capacity, known.host_free()?.min(known.capacity)))
        }
        _ => None,
    }
}

/// `nvmlDeviceGetMemoryInfo`: Returns the group's limit as total, and the group's usage as used;
/// total = free + used.
pub fn nvml_memory_info(
    call: Call,
    real: &dyn Real,
    device: NvmlDevice,
    memory: Out<NvmlMemory>,
) -> Status {
    let status = real.call();
    if let Some(told) = memory.read()
        && let Some((total, free)) = machine(call, device, status, told.total, told.free)
        && let Some((total, free)) = total_and_free(call, device, total, free)
    {
        memory.write(NvmlMemory {
            total,
            free,
            used: total - free,
        });
        return SUCCESS;
    }
    status
}

/// `nvmlDeviceGetMemoryInfo_v2`: Returns the group's limit as total and its usage as used. Reserved
/// is 0, because the limit excludes it.
pub fn nvml_memory_info_v2(
    call: Call,
    real: &dyn Real,
    device: NvmlDevice,
    memory: Out<NvmlMemoryV2>,
) -> Status {
    let status = real.call();
    if let Some(told) = memory.read()
        && told.version == NVML_MEMORY_V2
        && let Some((total, free)) = machine(call, device, status, told.total, told.free)
        && let Some((total, free)) = total_and_free(call, device, total, free)
    {
        memory.write(NvmlMemoryV2 {
            version: told.version,
            total,
            reserved: 0,
            free,
            used: total - free,
        });
        return SUCCESS;
    }
    status
}

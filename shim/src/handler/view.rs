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
        && let Some((device, max)) = limited(call.process.current_device())
    {
        device.book.clean();
        let left = device.book.free();
        match device.host_free() {
            Some(host) => free.write(clamp(left.min(host))),
            None => free.reduce(clamp(left)),
        }
        total.reduce(clamp(max));
    }
    status
}

/// `cuMemGetInfo`: Answered like `cuMemGetInfo_v2`, with 32-bit figures. A figure that does not fit
/// becomes the largest 32-bit number.
pub fn mem_get_info_v1(call: Call, real: &dyn Real, free: Out<u32>, total: Out<u32>) -> Status {
    let status = real.call();
    if status == SUCCESS
        && let Some((device, max)) = limited(call.process.current_device())
    {
        device.book.clean();
        // Asks the 64-bit function, because the 32-bit function can cut off the upper half of a
        // number.
        let (mut real_free, mut real_total) = (0, 0);
        if cuda::cuMemGetInfo_v2(Out::of(&mut real_free), Out::of(&mut real_total)) == SUCCESS {
            free.write(clamp_v1(device.book.free().min(real_free as u64)));
            total.write(clamp_v1(max.min(real_total as u64)));
        }
    }
    status
}

/// `cuDeviceTotalMem_v2`: Returns the smallest limit among the group and its parent groups.
pub fn device_total_mem(call: Call, real: &dyn Real, bytes: Out<usize>, device: Ordinal) -> Status {
    let status = real.call();
    if status == SUCCESS
        && let Some((_, max)) = limited(call.process.device(device))
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
        && let Some((_, max)) = limited(call.process.device(device))
    {
        let mut total = 0;
        if cuda::cuDeviceTotalMem_v2(Out::of(&mut total), device) == SUCCESS {
            bytes.write(clamp_v1(max.min(total as u64)));
        }
    }
    status
}

/// Returns the device with the group's limit on it; `None` if the group has no limit on the device.
fn limited(device: Result<&'static Device, Status>) -> Option<(&'static Device, u64)> {
    let device = device.ok()?;
    let max = device.book.max();
    (max != u64::MAX).then_some((device, max))
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn clamp_v1(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Returns the group's limit and used bytes on the device; `None` without a limit. `total` is the
/// memory of the whole device.
fn total_and_used(call: Call, device: NvmlDevice, total: u64) -> Option<(u64, u64)> {
    let [max, charged, ..] = figures_of(call, device, total)?;
    (max < total).then_some((max, charged.min(max)))
}

/// Returns the group's limit, its charge, its usage, and the memory that CUDA shows of the device.
/// `total` is the memory of the whole device.
fn figures_of(call: Call, device: NvmlDevice, total: u64) -> Option<[u64; 4]> {
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
    let (max, charged, used) = match member {
        Ok(member) => {
            let member_device = member.device(id, capacity).ok()?;
            let max = member.max(&member_device);
            member.clean_at_times(&member_device, &figures::ProcessList);
            let (_, used) = member.limit_and_usage(&member_device);
            (max, member.charged(&member_device), used)
        }
        // CUDA has not numbered the GPUs yet. The only GPU of a machine has the ordinal 0.
        Err(_) => {
            let is_only =
                id.kind == DeviceKind::Gpu && answer(nvml::nvmlDeviceGetCount_v2) == Ok(1);
            let (max, charged) = membership::outlook(id, is_only.then_some(0), capacity)?;
            (max, charged, charged)
        }
    };
    Some([max, charged, used, capacity])
}

/// Returns what [`figures_of`] does, and the free bytes of the device, before CUDA has numbered the
/// GPUs.
pub fn before_cuda(call: Call, device: NvmlDevice) -> Option<([u64; 4], u64)> {
    let memory: NvmlMemory = answer(|memory| nvml::nvmlDeviceGetMemoryInfo(device, memory)).ok()?;
    Some((figures_of(call, device, memory.total)?, memory.free))
}

/// Returns true only if the device behind an NVML handle certainly has no limit. Returns false if
/// that is unknown.
pub fn is_unlimited(call: Call, device: NvmlDevice) -> bool {
    let mut memory = NvmlMemory::default();
    let status = nvml::nvmlDeviceGetMemoryInfo(device, Out::of(&mut memory));
    let total = total(call, device, status, memory.total);
    total.is_some_and(|total| {
        !figures::is_cut(device) && total_and_used(call, device, total).is_none()
    })
}

/// Returns the memory of the whole device, after NVML's answer about it: `told`, or if the GPU
/// shares the host's memory, what CUDA shows to this process. `None` if unknown.
#[inline(never)]
fn total(call: Call, device: NvmlDevice, status: Status, told: u64) -> Option<u64> {
    match status {
        SUCCESS => Some(told),
        NVML_ERROR_NOT_SUPPORTED => {
            let id = figures::identify(device)?;
            let mut known = call.process.devices();
            let shared = known.find(|known| known.shares_host && known.id == id)?;
            Some(shared.capacity)
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
    if let Some(machine) = memory.read()
        && let Some(total) = total(call, device, status, machine.total)
        && let Some((total, used)) = total_and_used(call, device, total)
    {
        memory.write(NvmlMemory {
            total,
            free: total - used,
            used,
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
    if let Some(machine) = memory.read()
        && machine.version == NVML_MEMORY_V2
        && let Some(total) = total(call, device, status, machine.total)
        && let Some((total, used)) = total_and_used(call, device, total)
    {
        memory.write(NvmlMemoryV2 {
            version: machine.version,
            total,
            reserved: 0,
            free: total - used,
            used,
        });
        return SUCCESS;
    }
    status
}

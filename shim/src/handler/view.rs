//! Questions about how much memory there is: answered for the group.
//!
//! Total is the smallest limit on the group's path, free what this process could still get. A figure is only ever made smaller.

use crate::abi::{
    Device as Ordinal, NVML_MEMORY_V2, NvmlDevice, NvmlMemory, NvmlMemoryV2, Out, SUCCESS, Status,
};
use crate::hook::Call;
use crate::nvml;
use crate::table;

/// `cuMemGetInfo_v2`.
pub fn mem_get_info(
    call: Call,
    real: impl Fn(Out<usize>, Out<usize>) -> Status,
    free: Out<usize>,
    total: Out<usize>,
) -> Status {
    let status = real(free, total);
    if status != SUCCESS {
        return status;
    }
    if let (Ok(device), Some(real_free), Some(real_total)) =
        (call.process.current_device(), free.read(), total.read())
    {
        let max = device.max();
        if max != u64::MAX {
            free.write(real_free.min(clamp(device.free())));
            total.write(real_total.min(clamp(max)));
        }
    }
    status
}

/// `cuDeviceTotalMem_v2`.
pub fn device_total_mem(
    call: Call,
    real: impl Fn(Out<usize>, Ordinal) -> Status,
    bytes: Out<usize>,
    device: Ordinal,
) -> Status {
    let status = real(bytes, device);
    if status != SUCCESS {
        return status;
    }
    if let (Ok(device), Some(total)) = (call.process.device(device), bytes.read()) {
        bytes.write(total.min(clamp(device.max())));
    }
    status
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The group's total and used bytes on the device behind an NVML handle; `None` where no limit applies to it.
fn share(call: Call, device: NvmlDevice, total: u64) -> Option<(u64, u64)> {
    let member = call.process.member().ok()?;
    // Shares of a device are shares of what CUDA calls its memory: without what the driver reserves.
    let mut memory = NvmlMemoryV2 {
        version: NVML_MEMORY_V2,
        ..NvmlMemoryV2::default()
    };
    let reserved = match table::nvml::nvmlDeviceGetMemoryInfo_v2(device, Out::of(&mut memory)) {
        SUCCESS => memory.reserved,
        _ => 0,
    };
    let capacity = total.saturating_sub(reserved);
    let share = member.device(nvml::identify(device)?, capacity).ok()?;
    let max = member.max(&share);
    (max < total).then(|| (max, member.charged(&share).min(max)))
}

/// `nvmlDeviceGetMemoryInfo`: total = free + used.
pub fn nvml_memory_info(
    call: Call,
    real: impl Fn(NvmlDevice, Out<NvmlMemory>) -> Status,
    device: NvmlDevice,
    memory: Out<NvmlMemory>,
) -> Status {
    let status = real(device, memory);
    if let (SUCCESS, Some(machine)) = (status, memory.read())
        && let Some((total, used)) = share(call, device, machine.total)
    {
        memory.write(NvmlMemory {
            total,
            free: total - used,
            used,
        });
    }
    status
}

/// `nvmlDeviceGetMemoryInfo_v2`: total = reserved + free + used. What the driver reserves is outside of the group's share.
pub fn nvml_memory_info_v2(
    call: Call,
    real: impl Fn(NvmlDevice, Out<NvmlMemoryV2>) -> Status,
    device: NvmlDevice,
    memory: Out<NvmlMemoryV2>,
) -> Status {
    let status = real(device, memory);
    if let (SUCCESS, Some(machine)) = (status, memory.read())
        && machine.version == NVML_MEMORY_V2
        && let Some((total, used)) = share(call, device, machine.total)
    {
        memory.write(NvmlMemoryV2 {
            version: machine.version,
            total,
            reserved: 0,
            free: total - used,
            used,
        });
    }
    status
}

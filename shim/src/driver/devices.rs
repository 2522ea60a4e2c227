//! The GPUs that this process sees, as the CUDA driver numbers and describes them.

use std::sync::atomic::{AtomicBool, Ordering};

use gpulimit_base::device::{DeviceId, DeviceKind};

use super::{answer, cuda};
use crate::abi::{ATTRIBUTE_INTEGRATED, Device as Ordinal, Status};

/// Returns the visible GPUs with their CUDA ordinals. The list is empty before `cuInit` or without
/// a driver. Does not load the driver.
pub fn all() -> Vec<(u32, DeviceId)> {
    if !cuda::CUDA.loaded() {
        return Vec::new();
    }
    (0..answer(cuda::cuDeviceGetCount).unwrap_or(0))
        .filter_map(|ordinal| Some((u32::try_from(ordinal).ok()?, id(ordinal)?)))
        .collect()
}

/// Returns the size of the memory of the GPU with this CUDA ordinal, in bytes.
pub fn capacity(ordinal: Ordinal) -> Result<u64, Status> {
    let bytes = answer(|total| cuda::cuDeviceTotalMem_v2(total, ordinal))?;
    Ok(bytes as u64)
}

/// Whether a GPU that this process has used shares the host's memory.
static SHARE_HOST: AtomicBool = AtomicBool::new(false);

/// Notes that a GPU shares the host's memory.
pub fn note_shared_host() {
    SHARE_HOST.store(true, Ordering::Relaxed);
}

/// Returns whether all GPUs that this process has used have memory of their own. The hooks of host
/// memory ask this, whatever `size` is.
#[inline]
pub fn have_memory(_size: impl Copy) -> bool {
    !SHARE_HOST.load(Ordering::Relaxed)
}

/// Returns whether CUDA says that the GPU has no memory of its own.
pub fn is_integrated(ordinal: Ordinal) -> bool {
    attribute(ATTRIBUTE_INTEGRATED, ordinal) == Some(1)
}

/// Returns a `CUdevice_attribute` of the GPU; `None` if unknown, or if the value does not fit into
/// `T`.
pub fn attribute<T: TryFrom<i32>>(which: i32, ordinal: Ordinal) -> Option<T> {
    let value = answer(|value| cuda::cuDeviceGetAttribute(value, which, ordinal)).ok()?;
    T::try_from(value).ok()
}

/// Returns the identity of the GPU, or of the MIG slice, with this CUDA ordinal.
pub fn id(ordinal: Ordinal) -> Option<DeviceId> {
    let whole = answer(|uuid| cuda::cuDeviceGetUuid(uuid, ordinal)).ok()?.0;
    // Under MIG, `cuDeviceGetUuid_v2` returns the UUID of the MIG slice, and `cuDeviceGetUuid` the
    // UUID of the whole GPU.
    let slice = answer(|uuid| cuda::cuDeviceGetUuid_v2(uuid, ordinal)).map_or(whole, |uuid| uuid.0);
    let kind = match slice == whole {
        true => DeviceKind::Gpu,
        false => DeviceKind::Mig,
    };
    Some(DeviceId { uuid: slice, kind })
}

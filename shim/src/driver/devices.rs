//! The GPUs that this process sees, as the driver tells programs of them.

use gpulimit_base::device::{DeviceId, DeviceKind};

use super::{answer, cuda};
use crate::abi::{Device as Ordinal, Status};

/// The GPUs by CUDA ordinal. Empty before `cuInit`, and without the driver.
pub fn all() -> Vec<(u32, DeviceId)> {
    if !cuda::CUDA.present() {
        return Vec::new();
    }
    (0..answer(cuda::cuDeviceGetCount).unwrap_or(0))
        .filter_map(|ordinal| Some((u32::try_from(ordinal).ok()?, id(ordinal)?)))
        .collect()
}

/// The memory of a GPU in bytes, by CUDA ordinal.
pub fn capacity(ordinal: Ordinal) -> Result<u64, Status> {
    let bytes = answer(|total| cuda::cuDeviceTotalMem_v2(total, ordinal))?;
    Ok(bytes as u64)
}

/// An attribute of a GPU, by CUDA ordinal: a `CUdevice_attribute` that is not negative.
pub fn attribute<T: TryFrom<i32>>(which: i32, ordinal: Ordinal) -> Option<T> {
    let value = answer(|value| cuda::cuDeviceGetAttribute(value, which, ordinal)).ok()?;
    T::try_from(value).ok()
}

/// The GPU (or MIG slice) behind a CUDA ordinal.
pub fn id(ordinal: Ordinal) -> Option<DeviceId> {
    let whole = answer(|uuid| cuda::cuDeviceGetUuid(uuid, ordinal)).ok()?.0;
    // Under MIG the second version names the slice, the first the GPU.
    let slice = answer(|uuid| cuda::cuDeviceGetUuid_v2(uuid, ordinal)).map_or(whole, |uuid| uuid.0);
    let kind = match slice == whole {
        true => DeviceKind::Gpu,
        false => DeviceKind::Mig,
    };
    Some(DeviceId { uuid: slice, kind })
}

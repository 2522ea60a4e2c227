//! The GPUs that this process sees, as the driver tells programs of them.

use gpulimit_base::device::{DeviceId, DeviceKind};

use super::cuda;
use crate::abi::{Out, SUCCESS, Uuid};

/// The GPUs by CUDA ordinal. Empty before `cuInit`, and without the driver.
pub fn all() -> Vec<(u32, DeviceId)> {
    let mut count = 0;
    if !cuda::CUDA.present() || cuda::cuDeviceGetCount(Out::of(&mut count)) != SUCCESS {
        return Vec::new();
    }
    (0..count)
        .filter_map(|ordinal| Some((u32::try_from(ordinal).ok()?, id(ordinal)?)))
        .collect()
}

/// The memory of a GPU in bytes, by CUDA ordinal.
pub fn capacity(ordinal: u32) -> Option<u64> {
    let mut bytes = 0;
    let status = cuda::cuDeviceTotalMem_v2(Out::of(&mut bytes), i32::try_from(ordinal).ok()?);
    (status == SUCCESS).then_some(bytes as u64)
}

/// The GPU (or MIG slice) behind a CUDA ordinal.
pub fn id(ordinal: i32) -> Option<DeviceId> {
    let mut whole = Uuid::default();
    if cuda::cuDeviceGetUuid(Out::of(&mut whole), ordinal) != SUCCESS {
        return None;
    }
    // Under MIG the second version names the slice, the first the GPU.
    let mut slice = Uuid::default();
    if cuda::cuDeviceGetUuid_v2(Out::of(&mut slice), ordinal) == SUCCESS && slice.0 != whole.0 {
        return Some(DeviceId {
            uuid: slice.0,
            kind: DeviceKind::Mig,
        });
    }
    Some(DeviceId {
        uuid: whole.0,
        kind: DeviceKind::Gpu,
    })
}

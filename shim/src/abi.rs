//! The driver's C types, as plain integers.
//!
//! No Rust enum stands for a C enum: a caller or a newer driver may hand us a value that no header of today names.
//! Opaque handles are `usize`. Layouts are those of cuda.h 11.7–13.5 and nvml.h 11.7–13.5 (they did not change in between).

mod place;

pub use place::{In, Out};

/// `CUresult` and `nvmlReturn_t`: 0 is success.
pub type Status = i32;

pub const SUCCESS: Status = 0;
pub const CUDA_ERROR_OUT_OF_MEMORY: Status = 2;
pub const CUDA_ERROR_INVALID_DEVICE: Status = 101;
pub const CUDA_ERROR_NOT_FOUND: Status = 500;
pub const CUDA_ERROR_NOT_READY: Status = 600;
pub const CUDA_ERROR_NOT_PERMITTED: Status = 800;
pub const CUDA_ERROR_UNKNOWN: Status = 999;

pub const NVML_ERROR_INSUFFICIENT_SIZE: Status = 7;
pub const NVML_ERROR_FUNCTION_NOT_FOUND: Status = 13;
pub const NVML_ERROR_UNKNOWN: Status = 999;

/// A device address.
pub type DevicePtr = u64;
/// A device address of the 32-bit interface of before CUDA 3.2, whose functions have no suffix.
pub type DevicePtrV1 = u32;
/// A CUDA ordinal: an index after `CUDA_VISIBLE_DEVICES`.
pub type Device = i32;
pub type Context = usize;
pub type Stream = usize;
pub type Event = usize;
pub type MemPool = usize;
/// `CUmemGenericAllocationHandle`.
pub type AllocationHandle = u64;
/// `nvmlDevice_t`.
pub type NvmlDevice = usize;
/// An argument that we only pass on.
pub type Opaque = usize;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub const ATTRIBUTE_MULTIPROCESSORS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
pub const ATTRIBUTE_MULTIPROCESSOR_THREADS: i32 = 39;

/// `CUstreamCaptureStatus`: no capture under way.
pub const CAPTURE_STATUS_NONE: i32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const CAPTURE_MODE_RELAXED: i32 = 2;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`, a u64 of bytes.
pub const MEMPOOL_ATTR_RESERVED_MEM_CURRENT: i32 = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`, a u64 of bytes.
pub const MEMPOOL_ATTR_USED_MEM_CURRENT: i32 = 7;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN` (13.4): the id packs the ordinal into its lowest byte.
pub const LOCATION_DEVICE_LOCALITY_DOMAIN: i32 = 6;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const ALLOCATION_PINNED: i32 = 1;

/// `CUmemLocation`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub kind: i32,
    pub id: i32,
}

impl Location {
    /// The ordinal of the device that the memory lies on; `None` for host memory.
    pub fn device(self) -> Option<Device> {
        match self.kind {
            LOCATION_DEVICE => Some(self.id),
            LOCATION_DEVICE_LOCALITY_DOMAIN => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// The first 16 bytes of `CUmemAllocationProp` (32 bytes) and of `CUmemPoolProps` (88 bytes): the same in both.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    pub allocation_type: i32,
    pub handle_types: i32,
    pub location: Location,
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Uuid(pub [u8; 16]);

/// `nvmlMemory_t`: `used` includes what the driver reserves; total = free + used. Bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlMemory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`: `used` excludes `reserved`; total = reserved + free + used. Bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlMemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `NVML_STRUCT_VERSION(Memory, 2)`.
pub const NVML_MEMORY_V2: u32 = 0x0200_0028;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlProcessV1 {
    pub pid: u32,
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t`, also the element of `_v3` calls except in early R535.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlProcessV2 {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `nvmlProcessDetail_v1_t`, also the element of `_v3` calls in the first R535 drivers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlProcessDetail {
    pub base: NvmlProcessV2,
    pub protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvmlProcessDetailList {
    pub version: u32,
    pub mode: u32,
    /// In: elements that there is room for. Out: elements that there are.
    pub count: u32,
    pub processes: Out<NvmlProcessDetail>,
}

/// `NVML_STRUCT_VERSION(ProcessDetailList, 1)`.
pub const NVML_PROCESS_DETAIL_LIST_V1: u32 = 0x0100_0018;

/// `NVML_VALUE_NOT_AVAILABLE` as a 64-bit figure.
pub const NVML_NOT_AVAILABLE: u64 = u64::MAX;

const _: () = {
    assert!(size_of::<Location>() == 8);
    assert!(size_of::<AllocationProp>() == 16);
    assert!(std::mem::offset_of!(AllocationProp, location) == 8);
    assert!(size_of::<Uuid>() == 16);
    assert!(size_of::<NvmlMemory>() == 24);
    assert!(size_of::<NvmlMemoryV2>() == 40);
    assert!(std::mem::offset_of!(NvmlMemoryV2, total) == 8);
    assert!(size_of::<NvmlProcessV1>() == 16);
    assert!(size_of::<NvmlProcessV2>() == 24);
    assert!(size_of::<NvmlProcessDetail>() == 32);
    assert!(size_of::<NvmlProcessDetailList>() == 24);
    assert!(std::mem::offset_of!(NvmlProcessDetailList, processes) == 16);
};

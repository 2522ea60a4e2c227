//! The C types of the CUDA driver and NVML. Structures have the layouts of versions 11.7 to 13.5.
//!
//! C enums are plain integers: programs and newer drivers can pass values without a name in today's
//! headers. Opaque handles are `usize`.

mod place;

pub use place::{FileName, Image, In, Out};

/// The status that a function of the driver returns, `CUresult` or `nvmlReturn_t`: 0 is success.
pub type Status = i32;

pub const SUCCESS: Status = 0;
pub const CUDA_ERROR_OUT_OF_MEMORY: Status = 2;
pub const CUDA_ERROR_NOT_INITIALIZED: Status = 3;
pub const CUDA_ERROR_INVALID_DEVICE: Status = 101;
pub const CUDA_ERROR_NOT_FOUND: Status = 500;
pub const CUDA_ERROR_NOT_READY: Status = 600;
pub const CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: Status = 704;
pub const CUDA_ERROR_NOT_PERMITTED: Status = 800;
pub const CUDA_ERROR_UNKNOWN: Status = 999;

pub const NVML_ERROR_UNINITIALIZED: Status = 1;
pub const NVML_ERROR_NOT_SUPPORTED: Status = 3;
pub const NVML_ERROR_INSUFFICIENT_SIZE: Status = 7;
pub const NVML_ERROR_FUNCTION_NOT_FOUND: Status = 13;
pub const NVML_ERROR_UNKNOWN: Status = 999;

/// An address in device memory.
pub type DevicePtr = u64;
/// A device address of the 32-bit interface from before CUDA 3.2.
pub type DevicePtrV1 = u32;
/// A CUDA ordinal: the index of a GPU among those that `CUDA_VISIBLE_DEVICES` leaves visible.
pub type Device = i32;
pub type Context = usize;
pub type Stream = usize;
pub type Event = usize;
pub type MemPool = usize;
pub type Graph = usize;
/// `CUgraphNode`.
pub type Node = usize;
pub type GraphExec = usize;
/// `CUmemGenericAllocationHandle`.
pub type AllocationHandle = u64;
/// `CUarray` and `CUmipmappedArray`.
pub type Array = usize;
/// `nvmlDevice_t`.
pub type NvmlDevice = usize;
/// An argument that gpulimit passes on to the driver without looking at it.
pub type Opaque = usize;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub const ATTRIBUTE_MULTIPROCESSORS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`, a boolean.
pub const ATTRIBUTE_INTEGRATED: i32 = 18;
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
pub const ATTRIBUTE_MULTIPROCESSOR_THREADS: i32 = 39;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: i32 = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: i32 = 76;

/// `CU_MODULE_EAGER_LOADING`.
pub const LOADING_EAGER: i32 = 1;

/// `CU_LIMIT_STACK_SIZE`, bytes per thread.
pub const LIMIT_STACK_SIZE: i32 = 0;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`, bytes.
pub const LIMIT_MALLOC_HEAP_SIZE: i32 = 2;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`, per thread.
pub const FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: i32 = 3;

/// `CU_STREAM_CAPTURE_STATUS_NONE`: the stream is not being captured.
pub const CAPTURE_STATUS_NONE: i32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const CAPTURE_MODE_RELAXED: i32 = 2;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`, a u64 of bytes.
pub const MEMPOOL_ATTR_RESERVED_MEM_CURRENT: i32 = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`, a u64 of bytes.
pub const MEMPOOL_ATTR_USED_MEM_CURRENT: i32 = 7;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`, a u64 of bytes.
pub const GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: i32 = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, an int.
pub const POINTER_ATTRIBUTE_DEVICE_ORDINAL: i32 = 9;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, a `CUmemorytype`.
pub const POINTER_ATTRIBUTE_MEMORY_TYPE: i32 = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`, a boolean in the first byte.
pub const POINTER_ATTRIBUTE_IS_MANAGED: i32 = 8;
/// `CU_MEMORYTYPE_HOST`.
pub const MEMORY_TYPE_HOST: i32 = 1;
/// Values of `CUgraphNodeType`.
pub const NODE_TYPE_KERNEL: i32 = 0;
pub const NODE_TYPE_GRAPH: i32 = 4;
pub const NODE_TYPE_MEM_ALLOC: i32 = 10;
pub const NODE_TYPE_MEM_FREE: i32 = 11;
pub const NODE_TYPE_CONDITIONAL: i32 = 13;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
pub const GRAPH_INSTANTIATE_UPLOAD: u64 = 2;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN` (CUDA 13.4): the lowest byte of [`Location::id`]
/// is the CUDA ordinal.
pub const LOCATION_DEVICE_LOCALITY_DOMAIN: i32 = 6;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const ALLOCATION_PINNED: i32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
pub const ALLOCATION_MANAGED: i32 = 2;

/// `CUmemLocation`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Location {
    pub kind: i32,
    pub id: i32,
}

impl Location {
    /// Returns the CUDA ordinal of the device on which the memory lies; `None` for host memory.
    pub fn device(self) -> Option<Device> {
        match self.kind {
            LOCATION_DEVICE => Some(self.id),
            LOCATION_DEVICE_LOCALITY_DOMAIN => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// The first 16 bytes of `CUmemAllocationProp` (32 bytes) and of `CUmemPoolProps` (88 bytes). Both
/// structures begin with the same fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocationProp {
    pub allocation_type: i32,
    pub handle_types: i32,
    pub location: Location,
}

/// `CUmemAccessDesc`, 12 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: i32,
}

/// `CUipcMemHandle`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle([u8; 64]);

/// The first 40 bytes of `CUlaunchConfig` (56 bytes).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: Stream,
}

/// `CUDA_LAUNCH_PARAMS`, 56 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    pub function: Opaque,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: Stream,
    pub params: Opaque,
}

/// `CUDA_ARRAY3D_LAYERED`: the depth counts layers.
pub const ARRAY3D_LAYERED: u32 = 0x01;
/// `CUDA_ARRAY3D_CUBEMAP`: the depth counts layers, as with `CUDA_ARRAY3D_LAYERED`.
pub const ARRAY3D_CUBEMAP: u32 = 0x04;
/// `CUDA_ARRAY3D_SPARSE`: the array has no memory of its own.
pub const ARRAY3D_SPARSE: u32 = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: the array has no memory of its own; the driver tells how much
/// memory it requires.
pub const ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayDescriptor {
    pub width: usize,
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Array3dDescriptor {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrayMemoryRequirements {
    pub size: usize,
    pub alignment: usize,
    pub reserved: [u32; 4],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemAllocNodeParams {
    pub pool: AllocationProp,
    /// The bytes of `CUmemPoolProps` after the fields that it shares with [`AllocationProp`].
    pub pool_rest: [u64; 9],
    pub access: Opaque,
    pub access_count: usize,
    pub bytesize: usize,
    pub dptr: DevicePtr,
}

/// The first 16 bytes of `CUDA_GRAPH_INSTANTIATE_PARAMS` (32 bytes). The driver writes its results
/// into the other 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphInstantiateParams {
    pub flags: u64,
    pub upload_stream: Stream,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`, 72 bytes. The first 56 bytes are `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNodeParams {
    pub function: Opaque,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: Opaque,
    pub extra: Opaque,
    pub kernel: Opaque,
    pub context: Context,
}

impl KernelNodeParams {
    /// Returns the `CUfunction` of the node, or its `CUkernel` where the function is null.
    pub fn handle(&self) -> Option<Opaque> {
        [self.function, self.kernel]
            .into_iter()
            .find(|handle| *handle != 0)
    }
}

/// The first 8 bytes of `CUDA_KERNEL_NODE_PARAMS_v1` (56 bytes).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNodeParamsV1 {
    pub function: Opaque,
}

/// The first 88 bytes of `CUgraphNodeParams`, read as the parameters of a kernel node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeParams {
    pub kind: i32,
    pub reserved: [i32; 3],
    pub kernel: KernelNodeParams,
}

impl NodeParams {
    /// Returns the child graph of a child graph node. The result is meaningless for other kinds of
    /// nodes.
    pub fn child(&self) -> Graph {
        self.kernel.function
    }
}

/// The first 40 bytes of the `CUgraphNodeParams` of a conditional node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConditionalNodeParams {
    pub kind: i32,
    pub reserved: [i32; 3],
    pub handle: u64,
    pub conditional: i32,
    /// The number of graphs in the list `graphs`.
    pub size: u32,
    /// The list of the node's graphs, in the driver's memory; valid once the node has been added.
    pub graphs: In<Graph>,
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Uuid(pub [u8; 16]);

/// `nvmlMemory_t`, in bytes: `used` includes what the driver reserves, and `total` is `free` plus
/// `used`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlMemory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`, in bytes: `used` excludes `reserved`, and `total` is `reserved` plus `free`
/// plus `used`.
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

/// `nvmlProcessInfo_v2_t`. Also the element of the lists of `_v3` functions, except in the first
/// R535 drivers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmlProcessV2 {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `nvmlProcessDetail_v1_t`. Also the element of the lists of `_v3` functions in the first R535
/// drivers.
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
    /// Before the call: the number of elements that fit into `processes`. After the call: the
    /// length of the list.
    pub count: u32,
    pub processes: Out<NvmlProcessDetail>,
}

/// `NVML_STRUCT_VERSION(ProcessDetailList, 1)`.
pub const NVML_PROCESS_DETAIL_LIST_V1: u32 = 0x0100_0018;

/// `NVML_VALUE_NOT_AVAILABLE` as a number of bytes: NVML does not know the figure.
pub const NVML_NOT_AVAILABLE: u64 = u64::MAX;

const _: () = {
    assert!(size_of::<Location>() == 8);
    assert!(size_of::<AllocationProp>() == 16);
    assert!(std::mem::offset_of!(AllocationProp, location) == 8);
    assert!(size_of::<AccessDesc>() == 12);
    assert!(std::mem::offset_of!(AccessDesc, flags) == 8);
    assert!(size_of::<LaunchConfig>() == 40);
    assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);
    assert!(size_of::<LaunchParams>() == 56);
    assert!(std::mem::offset_of!(LaunchParams, stream) == 40);
    assert!(size_of::<ArrayDescriptor>() == 24);
    assert!(size_of::<Array3dDescriptor>() == 40);
    assert!(std::mem::offset_of!(Array3dDescriptor, flags) == 32);
    assert!(size_of::<ArrayMemoryRequirements>() == 32);
    assert!(size_of::<MemAllocNodeParams>() == 120);
    assert!(std::mem::offset_of!(MemAllocNodeParams, bytesize) == 104);
    assert!(std::mem::offset_of!(MemAllocNodeParams, dptr) == 112);
    assert!(size_of::<GraphInstantiateParams>() == 16);
    assert!(size_of::<KernelNodeParams>() == 72);
    assert!(std::mem::offset_of!(KernelNodeParams, kernel) == 56);
    assert!(std::mem::offset_of!(NodeParams, kernel) == 16);
    assert!(std::mem::offset_of!(ConditionalNodeParams, size) == 28);
    assert!(std::mem::offset_of!(ConditionalNodeParams, graphs) == 32);
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

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use cudarc::driver::sys;

    use super::*;

    /// cudarc generates its layouts from NVIDIA's headers, so they are independent of those in
    /// `abi.rs`.
    #[test]
    fn layouts_match_cudarc() {
        assert_eq!(size_of::<Location>(), size_of::<sys::CUmemLocation>());
        assert_eq!(offset_of!(Location, id), offset_of!(sys::CUmemLocation, id));
        for (place, theirs) in [
            (
                offset_of!(AllocationProp, location),
                offset_of!(sys::CUmemAllocationProp, location),
            ),
            (
                offset_of!(AllocationProp, location),
                offset_of!(sys::CUmemPoolProps, location),
            ),
            (
                offset_of!(AllocationProp, handle_types),
                offset_of!(sys::CUmemPoolProps, handleTypes),
            ),
        ] {
            assert_eq!(place, theirs);
        }
        assert_eq!(size_of::<Uuid>(), size_of::<sys::CUuuid>());
        assert_eq!(size_of::<IpcHandle>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(size_of::<DevicePtr>(), size_of::<sys::CUdeviceptr>());
        assert_eq!(
            size_of::<AllocationHandle>(),
            size_of::<sys::CUmemGenericAllocationHandle>()
        );
        assert_eq!(size_of::<Stream>(), size_of::<sys::CUstream>());
    }

    #[test]
    fn constants_match_cudarc() {
        let pairs = [
            (
                CUDA_ERROR_OUT_OF_MEMORY,
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32,
            ),
            (
                CUDA_ERROR_NOT_INITIALIZED,
                sys::CUresult::CUDA_ERROR_NOT_INITIALIZED as i32,
            ),
            (
                CUDA_ERROR_INVALID_DEVICE,
                sys::CUresult::CUDA_ERROR_INVALID_DEVICE as i32,
            ),
            (
                CUDA_ERROR_NOT_FOUND,
                sys::CUresult::CUDA_ERROR_NOT_FOUND as i32,
            ),
            (
                CUDA_ERROR_NOT_READY,
                sys::CUresult::CUDA_ERROR_NOT_READY as i32,
            ),
            (
                CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as i32,
            ),
            (
                CUDA_ERROR_NOT_PERMITTED,
                sys::CUresult::CUDA_ERROR_NOT_PERMITTED as i32,
            ),
            (CUDA_ERROR_UNKNOWN, sys::CUresult::CUDA_ERROR_UNKNOWN as i32),
            (
                MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as i32,
            ),
            (
                POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as i32,
            ),
            (
                MEMPOOL_ATTR_USED_MEM_CURRENT,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as i32,
            ),
            (
                LOCATION_DEVICE,
                sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32,
            ),
            (
                ALLOCATION_PINNED,
                sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as i32,
            ),
            (
                CAPTURE_STATUS_NONE,
                sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as i32,
            ),
            (
                CAPTURE_MODE_RELAXED,
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as i32,
            ),
            (
                LOADING_EAGER,
                sys::CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING as i32,
            ),
            (
                ATTRIBUTE_MULTIPROCESSORS,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i32,
            ),
            (
                ATTRIBUTE_INTEGRATED,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED as i32,
            ),
            (
                ATTRIBUTE_MULTIPROCESSOR_THREADS,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR as i32,
            ),
            (
                ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as i32,
            ),
            (
                ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as i32,
            ),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours, theirs);
        }
    }
}

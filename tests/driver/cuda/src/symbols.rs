//! The table of the driver's exported functions.
//!
//! A row reads `exported_name(arguments) "base name" version => handler;`. `cuGetProcAddress` finds
//! the function by the base name. The handler is a Rust function.
//!
//! A function with a twin for the per-thread default stream has `version | twin's_name version`.
//! Then the handler's last argument says whether the twin was called.
#![allow(non_snake_case, missing_docs)]

use crate::{
    array, checkpoint, context, copy, device, external, graph, green, host, lookup, memory, module,
    pool, stream, tables, tool, vmm,
};
use gpulimit_sim::abi::{In, Out, Site, Text, code};
use gpulimit_sim::cancel::{Point, Whole};
use gpulimit_sim::ipc::Handle;
use std::ffi::CStr;

/// One exported function.
pub struct Symbol {
    /// The name by which `cuGetProcAddress` finds the function.
    pub base: &'static str,
    /// The first CUDA version for which `cuGetProcAddress` returns the function.
    pub version: i32,
    /// Whether the function is a twin: a variant of another function that uses the per-thread
    /// default stream.
    pub per_thread: bool,
    /// The address of the exported driver function.
    pub address: Address,
}

/// A function's address.
#[derive(Clone, Copy)]
pub struct Address(pub *const ());

// SAFETY: the value is the address of code, which every thread may read.
unsafe impl Sync for Address {}

macro_rules! export {
    ($name:ident($($argument:ident: $type:ty),*) $handler:path $(, $twin:literal)?) => {
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> i32 {
            const { Point::of(stringify!($name)) }.pass();
            let _whole = Whole::new();
            static SITE: Site = Site::new(stringify!($name));
            const NAME: &CStr = match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!("a name has no NUL"),
            };
            tool::tell(NAME, false);
            let code = SITE.run(|| SITE.note(code($handler($($argument,)* $($twin)?))));
            tool::tell(NAME, true);
            code
        }
    };
}

macro_rules! symbols {
    (@row $name:ident($($argument:ident: $type:ty),*) $handler:path) => {
        export!($name($($argument: $type),*) $handler);
    };
    (@row $name:ident($($argument:ident: $type:ty),*) $handler:path, $twin:ident) => {
        export!($name($($argument: $type),*) $handler, false);
        export!($twin($($argument: $type),*) $handler, true);
    };
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) $base:literal $version:literal
        $(| $twin:ident $twin_version:literal)? => $handler:path;)*) => {
        $(symbols!(@row $name($($argument: $type),*) $handler $(, $twin)?);)*

        /// Every row of the table.
        pub static SYMBOLS: &[Symbol] = &[$(
            Symbol {
                base: $base,
                version: $version,
                per_thread: false,
                address: Address($name as *const ()),
            },
            $(Symbol {
                base: $base,
                version: $twin_version,
                per_thread: true,
                address: Address($twin as *const ()),
            },)?
        )*];
    };
}

symbols! {
    cuInit(flags: u32) "cuInit" 2000 => device::init;
    cuDriverGetVersion(version: Out<i32>) "cuDriverGetVersion" 2020 => device::driver_version;
    cuGetErrorName(error: i32, text: Out<usize>) "cuGetErrorName" 6000 => device::error_name;
    cuGetErrorString(error: i32, text: Out<usize>) "cuGetErrorString" 6000 => device::error_string;
    cuGetProcAddress(symbol: Text, pfn: Out<usize>, version: i32, flags: u64)
        "cuGetProcAddress" 11030 => lookup::v1;
    cuGetProcAddress_v2(symbol: Text, pfn: Out<usize>, version: i32, flags: u64, status: Out<i32>)
        "cuGetProcAddress" 12000 => lookup::v2;

    cuGetExportTable(table: Out<usize>, id: In<[u8; 16]>) "cuGetExportTable" 3000 => tables::get;

    cuDeviceGet(device: Out<i32>, ordinal: i32) "cuDeviceGet" 2000 => device::get;
    cuDeviceGetCount(count: Out<i32>) "cuDeviceGetCount" 2000 => device::count;
    cuDeviceGetName(name: Out<u8>, length: i32, device: i32) "cuDeviceGetName" 2000 => device::name;
    cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) "cuDeviceGetUuid" 9020 => device::uuid;
    cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) "cuDeviceGetUuid" 11040 => device::uuid_v2;
    cuDeviceGetLuid(luid: Out<u8>, mask: Out<u32>, device: i32)
        "cuDeviceGetLuid" 10000 => device::luid;
    cuDeviceTotalMem(bytes: Out<u32>, device: i32) "cuDeviceTotalMem" 2000 => device::total_v1;
    cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) "cuDeviceTotalMem" 3020 => device::total;
    cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32)
        "cuDeviceGetAttribute" 2000 => device::attribute;
    cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32)
        "cuDeviceComputeCapability" 2000 => device::capability;
    cuDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32)
        "cuDeviceGetPCIBusId" 4010 => device::bus_id;
    cuDeviceGetByPCIBusId(device: Out<i32>, text: Text)
        "cuDeviceGetByPCIBusId" 4010 => device::by_bus_id;
    cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32)
        "cuDeviceCanAccessPeer" 4000 => device::can_access_peer;
    cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, source: i32, target: i32)
        "cuDeviceGetP2PAttribute" 8000 => device::p2p_attribute;
    cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: i32, channels: u32, device: i32)
        "cuDeviceGetTexture1DLinearMaxWidth" 11010 => device::texture_width;
    cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: i32, device: i32)
        "cuDeviceGetExecAffinitySupport" 11040 => device::affinity_support;

    cuDevicePrimaryCtxRetain(context: Out<usize>, device: i32)
        "cuDevicePrimaryCtxRetain" 7000 => context::retain;
    cuDevicePrimaryCtxRelease(device: i32) "cuDevicePrimaryCtxRelease" 7000 => context::release;
    cuDevicePrimaryCtxRelease_v2(device: i32) "cuDevicePrimaryCtxRelease" 11000 => context::release;
    cuDevicePrimaryCtxReset(device: i32) "cuDevicePrimaryCtxReset" 7000 => context::reset;
    cuDevicePrimaryCtxReset_v2(device: i32) "cuDevicePrimaryCtxReset" 11000 => context::reset;
    cuDevicePrimaryCtxSetFlags(device: i32, flags: u32)
        "cuDevicePrimaryCtxSetFlags" 7000 => context::set_primary_flags_v1;
    cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32)
        "cuDevicePrimaryCtxSetFlags" 11000 => context::set_primary_flags;
    cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>)
        "cuDevicePrimaryCtxGetState" 7000 => context::primary_state;
    cuCtxCreate(context: Out<usize>, flags: u32, device: i32) "cuCtxCreate" 2000 => context::create;
    cuCtxCreate_v2(context: Out<usize>, flags: u32, device: i32)
        "cuCtxCreate" 3020 => context::create;
    cuCtxCreate_v3(context: Out<usize>, params: In<u8>, count: i32, flags: u32, device: i32)
        "cuCtxCreate" 11040 => context::create_v3;
    cuCtxCreate_v4(context: Out<usize>, params: In<u8>, flags: u32, device: i32)
        "cuCtxCreate" 12050 => context::create_v4;
    cuGLCtxCreate(context: Out<usize>, flags: u32, device: i32)
        "cuGLCtxCreate" 2000 => context::create;
    cuGLCtxCreate_v2(context: Out<usize>, flags: u32, device: i32)
        "cuGLCtxCreate" 3020 => context::create;
    cuVDPAUCtxCreate(
        context: Out<usize>, flags: u32, device: i32, vdp_device: u32, get_proc_address: usize)
        "cuVDPAUCtxCreate" 3010 => context::create_vdpau;
    cuVDPAUCtxCreate_v2(
        context: Out<usize>, flags: u32, device: i32, vdp_device: u32, get_proc_address: usize)
        "cuVDPAUCtxCreate" 3020 => context::create_vdpau;
    cuDeviceGetDevResource(device: i32, resource: Out<u8>, kind: i32)
        "cuDeviceGetDevResource" 12040 => green::resource;
    cuDevResourceGenerateDesc(description: Out<usize>, resources: In<u8>, count: u32)
        "cuDevResourceGenerateDesc" 12040 => green::describe;
    cuGreenCtxCreate(green: Out<usize>, description: usize, device: i32, flags: u32)
        "cuGreenCtxCreate" 12040 => green::create;
    cuGreenCtxDestroy(green: usize) "cuGreenCtxDestroy" 12040 => green::destroy;
    cuCtxFromGreenCtx(context: Out<usize>, green: usize)
        "cuCtxFromGreenCtx" 12040 => green::context;
    cuGreenCtxStreamCreate(stream: Out<usize>, green: usize, flags: u32, priority: i32)
        "cuGreenCtxStreamCreate" 12050 => green::stream;
    cuCtxDestroy(context: usize) "cuCtxDestroy" 2000 => context::destroy;
    cuCtxDestroy_v2(context: usize) "cuCtxDestroy" 4000 => context::destroy;
    cuCtxAttach(context: Out<usize>, flags: u32) "cuCtxAttach" 2000 => context::attach;
    cuCtxDetach(context: usize) "cuCtxDetach" 2000 => context::detach;
    cuCtxGetCurrent(context: Out<usize>) "cuCtxGetCurrent" 4000 => context::get_current;
    cuCtxSetCurrent(context: usize) "cuCtxSetCurrent" 4000 => context::set_current;
    cuCtxPushCurrent(context: usize) "cuCtxPushCurrent" 2000 => context::push_current;
    cuCtxPushCurrent_v2(context: usize) "cuCtxPushCurrent" 4000 => context::push_current;
    cuCtxPopCurrent(context: Out<usize>) "cuCtxPopCurrent" 2000 => context::pop_current;
    cuCtxPopCurrent_v2(context: Out<usize>) "cuCtxPopCurrent" 4000 => context::pop_current;
    cuCtxGetDevice(device: Out<i32>) "cuCtxGetDevice" 2000 => context::get_device;
    cuCtxGetDevice_v2(device: Out<i32>, context: usize)
        "cuCtxGetDevice" 13000 => context::get_device_v2;
    cuCtxSynchronize() "cuCtxSynchronize" 2000 => context::synchronize;
    cuCtxSynchronize_v2(context: usize) "cuCtxSynchronize" 13000 => context::synchronize_v2;
    cuCtxGetApiVersion(context: usize, version: Out<u32>)
        "cuCtxGetApiVersion" 3020 => context::api_version;
    cuCtxGetFlags(flags: Out<u32>) "cuCtxGetFlags" 7000 => context::get_flags;
    cuCtxSetFlags(flags: u32) "cuCtxSetFlags" 12010 => context::set_flags;
    cuCtxGetId(context: usize, id: Out<u64>) "cuCtxGetId" 12000 => context::get_id;
    cuCtxGetLimit(value: Out<usize>, limit: i32) "cuCtxGetLimit" 3010 => context::get_limit;
    cuCtxSetLimit(limit: i32, value: usize) "cuCtxSetLimit" 3010 => context::set_limit;
    cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>)
        "cuCtxGetStreamPriorityRange" 5050 => context::priority_range;
    cuCtxGetCacheConfig(config: Out<i32>) "cuCtxGetCacheConfig" 3020 => context::get_config;
    cuCtxSetCacheConfig(config: i32) "cuCtxSetCacheConfig" 3020 => context::set_config;
    cuCtxGetSharedMemConfig(config: Out<i32>) "cuCtxGetSharedMemConfig" 4020 => context::get_config;
    cuCtxSetSharedMemConfig(config: i32) "cuCtxSetSharedMemConfig" 4020 => context::set_config;
    cuCtxResetPersistingL2Cache() "cuCtxResetPersistingL2Cache" 11000 => context::reset_l2;
    cuCtxEnablePeerAccess(peer: usize, flags: u32)
        "cuCtxEnablePeerAccess" 4000 => context::peer_access;
    cuCtxDisablePeerAccess(peer: usize) "cuCtxDisablePeerAccess" 4000 => context::no_peer_access;

    cuMemGetInfo(free: Out<u32>, total: Out<u32>) "cuMemGetInfo" 2000 => memory::info_v1;
    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) "cuMemGetInfo" 3020 => memory::info;
    cuMemAlloc(dptr: Out<u32>, bytes: u32) "cuMemAlloc" 2000 => memory::allocate_v1;
    cuMemAlloc_v2(dptr: Out<u64>, bytes: usize) "cuMemAlloc" 3020 => memory::allocate;
    cuMemAllocPitch(dptr: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32)
        "cuMemAllocPitch" 2000 => memory::allocate_pitch_v1;
    cuMemAllocPitch_v2(dptr: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32)
        "cuMemAllocPitch" 3020 => memory::allocate_pitch;
    cuMemAllocManaged(dptr: Out<u64>, bytes: usize, flags: u32)
        "cuMemAllocManaged" 6000 => memory::allocate_managed;
    cuMemFree(dptr: u32) "cuMemFree" 2000 => memory::free_v1;
    cuMemFree_v2(dptr: u64) "cuMemFree" 3020 => memory::free;
    cuIpcGetMemHandle(handle: Out<Handle>, dptr: u64) "cuIpcGetMemHandle" 4010 => memory::ipc_get;
    cuIpcOpenMemHandle(dptr: Out<u64>, handle: Handle, flags: u32)
        "cuIpcOpenMemHandle" 4010 => memory::ipc_open;
    cuIpcOpenMemHandle_v2(dptr: Out<u64>, handle: Handle, flags: u32)
        "cuIpcOpenMemHandle" 11000 => memory::ipc_open;
    cuIpcCloseMemHandle(dptr: u64) "cuIpcCloseMemHandle" 4010 => memory::ipc_close;
    cuIpcOpenEventHandle(event: Out<usize>, handle: Handle)
        "cuIpcOpenEventHandle" 4010 => stream::open_event;
    cuImportExternalMemory(memory: Out<usize>, description: In<u8>)
        "cuImportExternalMemory" 10000 => external::import_memory;
    cuDestroyExternalMemory(memory: usize)
        "cuDestroyExternalMemory" 10000 => external::destroy_memory;
    cuImportExternalSemaphore(semaphore: Out<usize>, description: In<u8>)
        "cuImportExternalSemaphore" 10000 => external::import_semaphore;
    cuDestroyExternalSemaphore(semaphore: usize)
        "cuDestroyExternalSemaphore" 10000 => external::destroy_semaphore;
    cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, dptr: u64)
        "cuMemGetAddressRange" 3020 => memory::address_range;
    cuPointerGetAttribute(data: Out<u8>, attribute: i32, pointer: u64)
        "cuPointerGetAttribute" 4000 => memory::pointer_attribute;
    cuPointerGetAttributes(count: u32, attributes: In<i32>, data: In<Out<u8>>, pointer: u64)
        "cuPointerGetAttributes" 7000 => memory::pointer_attributes;
    cuPointerSetAttribute(value: In<u8>, attribute: i32, pointer: u64)
        "cuPointerSetAttribute" 6000 => memory::set_pointer_attribute;
    cuMemAdvise(pointer: u64, count: usize, advice: i32, device: i32)
        "cuMemAdvise" 8000 => memory::advise;
    cuMemAdvise_v2(pointer: u64, count: usize, advice: i32, location: u64)
        "cuMemAdvise" 12020 => memory::advise_v2;
    cuMemPrefetchAsync(pointer: u64, count: usize, device: i32, stream: usize)
        "cuMemPrefetchAsync" 8000 | cuMemPrefetchAsync_ptsz 8000 => memory::prefetch;
    cuMemPrefetchAsync_v2(pointer: u64, count: usize, location: u64, flags: u32, stream: usize)
        "cuMemPrefetchAsync" 12020 | cuMemPrefetchAsync_v2_ptsz 12020 => memory::prefetch_v2;

    cuMemAllocHost(pointer: Out<usize>, bytes: u32) "cuMemAllocHost" 2000 => host::allocate_v1;
    cuMemAllocHost_v2(pointer: Out<usize>, bytes: usize)
        "cuMemAllocHost" 3020 => host::allocate_plain;
    cuMemHostAlloc(pointer: Out<usize>, bytes: usize, flags: u32)
        "cuMemHostAlloc" 2020 => host::allocate;
    cuMemFreeHost(pointer: usize) "cuMemFreeHost" 2000 => host::free;
    cuMemHostRegister(pointer: usize, bytes: usize, flags: u32)
        "cuMemHostRegister" 4000 => host::register;
    cuMemHostRegister_v2(pointer: usize, bytes: usize, flags: u32)
        "cuMemHostRegister" 6050 => host::register;
    cuMemHostUnregister(pointer: usize) "cuMemHostUnregister" 4000 => host::unregister;
    cuMemHostGetDevicePointer_v2(dptr: Out<u64>, pointer: usize, flags: u32)
        "cuMemHostGetDevicePointer" 3020 => host::device_pointer;
    cuMemHostGetFlags(flags: Out<u32>, pointer: usize) "cuMemHostGetFlags" 2030 => host::flags;

    cuMemcpy(to: u64, from: u64, bytes: usize) "cuMemcpy" 4000 | cuMemcpy_ptds 7000 => copy::copy;
    cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize)
        "cuMemcpyHtoD" 3020 | cuMemcpyHtoD_v2_ptds 7000 => copy::copy;
    cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize)
        "cuMemcpyDtoH" 3020 | cuMemcpyDtoH_v2_ptds 7000 => copy::copy;
    cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize)
        "cuMemcpyDtoD" 3020 | cuMemcpyDtoD_v2_ptds 7000 => copy::copy;
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize)
        "cuMemcpyAsync" 4000 | cuMemcpyAsync_ptsz 7000 => copy::copy_async;
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize)
        "cuMemcpyHtoDAsync" 3020 | cuMemcpyHtoDAsync_v2_ptsz 7000 => copy::copy_async;
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize)
        "cuMemcpyDtoHAsync" 3020 | cuMemcpyDtoHAsync_v2_ptsz 7000 => copy::copy_async;
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize)
        "cuMemcpyDtoDAsync" 3020 | cuMemcpyDtoDAsync_v2_ptsz 7000 => copy::copy_async;
    cuMemcpyPeer(to: u64, target: usize, from: u64, source: usize, bytes: usize)
        "cuMemcpyPeer" 4000 | cuMemcpyPeer_ptds 7000 => copy::copy_peer;
    cuMemcpyPeerAsync(to: u64, target: usize, from: u64, source: usize, bytes: usize, stream: usize)
        "cuMemcpyPeerAsync" 4000 | cuMemcpyPeerAsync_ptsz 7000 => copy::copy_peer_async;
    cuMemcpy2D_v2(params: In<u8>) "cuMemcpy2D" 3020 | cuMemcpy2D_v2_ptds 7000 => copy::copy_shape;
    cuMemcpy2DUnaligned_v2(params: In<u8>)
        "cuMemcpy2DUnaligned" 3020 | cuMemcpy2DUnaligned_v2_ptds 7000 => copy::copy_shape;
    cuMemcpy2DAsync_v2(params: In<u8>, stream: usize)
        "cuMemcpy2DAsync" 3020 | cuMemcpy2DAsync_v2_ptsz 7000 => copy::copy_shape_async;
    cuMemcpy3D_v2(params: In<u8>) "cuMemcpy3D" 3020 | cuMemcpy3D_v2_ptds 7000 => copy::copy_shape;
    cuMemcpy3DAsync_v2(params: In<u8>, stream: usize)
        "cuMemcpy3DAsync" 3020 | cuMemcpy3DAsync_v2_ptsz 7000 => copy::copy_shape_async;
    cuMemsetD8_v2(to: u64, value: u8, count: usize)
        "cuMemsetD8" 3020 | cuMemsetD8_v2_ptds 7000 => copy::fill8;
    cuMemsetD16_v2(to: u64, value: u16, count: usize)
        "cuMemsetD16" 3020 | cuMemsetD16_v2_ptds 7000 => copy::fill16;
    cuMemsetD32_v2(to: u64, value: u32, count: usize)
        "cuMemsetD32" 3020 | cuMemsetD32_v2_ptds 7000 => copy::fill32;
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize)
        "cuMemsetD8Async" 3020 | cuMemsetD8Async_ptsz 7000 => copy::fill8_async;
    cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize)
        "cuMemsetD16Async" 3020 | cuMemsetD16Async_ptsz 7000 => copy::fill16_async;
    cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize)
        "cuMemsetD32Async" 3020 | cuMemsetD32Async_ptsz 7000 => copy::fill32_async;

    cuMemAllocAsync(dptr: Out<u64>, bytes: usize, stream: usize)
        "cuMemAllocAsync" 11020 | cuMemAllocAsync_ptsz 11020 => pool::allocate;
    cuMemAllocFromPoolAsync(dptr: Out<u64>, bytes: usize, pool: usize, stream: usize)
        "cuMemAllocFromPoolAsync" 11020 | cuMemAllocFromPoolAsync_ptsz 11020 => pool::allocate_from;
    cuMemFreeAsync(dptr: u64, stream: usize)
        "cuMemFreeAsync" 11020 | cuMemFreeAsync_ptsz 11020 => pool::free;
    cuMemPoolCreate(pool: Out<usize>, props: In<u8>) "cuMemPoolCreate" 11020 => pool::create;
    cuMemPoolDestroy(pool: usize) "cuMemPoolDestroy" 11020 => pool::destroy;
    cuMemPoolTrimTo(pool: usize, keep: usize) "cuMemPoolTrimTo" 11020 => pool::trim;
    cuMemPoolExportToShareableHandle(shareable: Out<i32>, pool: usize, kind: i32, flags: u64)
        "cuMemPoolExportToShareableHandle" 11020 => pool::export;
    cuMemPoolImportFromShareableHandle(pool: Out<usize>, shareable: usize, kind: i32, flags: u64)
        "cuMemPoolImportFromShareableHandle" 11020 => pool::import;
    cuMemPoolImportPointer(dptr: Out<u64>, pool: usize, data: In<u8>)
        "cuMemPoolImportPointer" 11020 => pool::import_pointer;
    cuMemPoolSetAttribute(pool: usize, attribute: i32, value: In<u8>)
        "cuMemPoolSetAttribute" 11020 => pool::set_attribute;
    cuMemPoolGetAttribute(pool: usize, attribute: i32, value: Out<u8>)
        "cuMemPoolGetAttribute" 11020 => pool::attribute;
    cuMemPoolSetAccess(pool: usize, map: In<u8>, count: usize)
        "cuMemPoolSetAccess" 11020 => pool::set_access;
    cuMemPoolGetAccess(flags: Out<i32>, pool: usize, location: In<[i32; 2]>)
        "cuMemPoolGetAccess" 11020 => pool::access;
    cuDeviceGetDefaultMemPool(pool: Out<usize>, device: i32)
        "cuDeviceGetDefaultMemPool" 11020 => pool::default_of;
    cuDeviceGetMemPool(pool: Out<usize>, device: i32)
        "cuDeviceGetMemPool" 11020 => pool::current_of;
    cuDeviceSetMemPool(device: i32, pool: usize) "cuDeviceSetMemPool" 11020 => pool::set_current_of;
    cuMemGetDefaultMemPool(pool: Out<usize>, location: In<[i32; 2]>, kind: i32)
        "cuMemGetDefaultMemPool" 13000 => pool::default_at;
    cuMemGetMemPool(pool: Out<usize>, location: In<[i32; 2]>, kind: i32)
        "cuMemGetMemPool" 13000 => pool::current_at;
    cuMemSetMemPool(location: In<[i32; 2]>, kind: i32, pool: usize)
        "cuMemSetMemPool" 13000 => pool::set_current_at;

    cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, wanted: u64, flags: u64)
        "cuMemAddressReserve" 10020 => vmm::reserve;
    cuMemAddressFree(address: u64, bytes: usize) "cuMemAddressFree" 10020 => vmm::unreserve;
    cuMemCreate(handle: Out<u64>, bytes: usize, prop: In<u8>, flags: u64)
        "cuMemCreate" 10020 => vmm::create;
    cuMemRelease(handle: u64) "cuMemRelease" 10020 => vmm::release;
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64)
        "cuMemMap" 10020 => vmm::map;
    cuMemUnmap(address: u64, bytes: usize) "cuMemUnmap" 10020 => vmm::unmap;
    cuMemSetAccess(address: u64, bytes: usize, access: In<u8>, count: usize)
        "cuMemSetAccess" 10020 => vmm::set_access;
    cuMemGetAccess(flags: Out<u64>, location: In<[i32; 2]>, address: u64)
        "cuMemGetAccess" 10020 => vmm::access;
    cuMemGetAllocationGranularity(bytes: Out<usize>, prop: In<u8>, option: i32)
        "cuMemGetAllocationGranularity" 10020 => vmm::granularity;
    cuMemGetAllocationPropertiesFromHandle(prop: Out<[u8; 32]>, handle: u64)
        "cuMemGetAllocationPropertiesFromHandle" 10020 => vmm::properties;
    cuMemExportToShareableHandle(shareable: Out<i32>, handle: u64, kind: i32, flags: u64)
        "cuMemExportToShareableHandle" 10020 => vmm::export;
    cuMemImportFromShareableHandle(handle: Out<u64>, shareable: usize, kind: i32)
        "cuMemImportFromShareableHandle" 10020 => vmm::import;
    cuMemRetainAllocationHandle(handle: Out<u64>, address: u64)
        "cuMemRetainAllocationHandle" 11000 => vmm::retain;
    cuMulticastCreate(handle: Out<u64>, prop: In<u8>)
        "cuMulticastCreate" 12010 => vmm::create_multicast;

    cuArrayCreate(array: Out<u64>, descriptor: In<u8>) "cuArrayCreate" 2000 => array::create_v1;
    cuArrayCreate_v2(array: Out<u64>, descriptor: In<u8>) "cuArrayCreate" 3020 => array::create;
    cuArray3DCreate(array: Out<u64>, descriptor: In<u8>) "cuArray3DCreate" 2000 => array::create_v1;
    cuArray3DCreate_v2(array: Out<u64>, descriptor: In<u8>)
        "cuArray3DCreate" 3020 => array::create_3d;
    cuArrayDestroy(array: u64) "cuArrayDestroy" 2000 => array::destroy;
    cuArrayGetDescriptor_v2(descriptor: Out<u8>, array: u64)
        "cuArrayGetDescriptor" 3020 => array::descriptor;
    cuArray3DGetDescriptor_v2(descriptor: Out<u8>, array: u64)
        "cuArray3DGetDescriptor" 3020 => array::descriptor_3d;
    cuArrayGetMemoryRequirements(requirements: Out<[u64; 4]>, array: u64, device: i32)
        "cuArrayGetMemoryRequirements" 11060 => array::requirements;
    cuMipmappedArrayCreate(array: Out<u64>, descriptor: In<u8>, levels: u32)
        "cuMipmappedArrayCreate" 5000 => array::create_mipmapped;
    cuMipmappedArrayDestroy(array: u64) "cuMipmappedArrayDestroy" 5000 => array::destroy_mipmapped;
    cuMipmappedArrayGetLevel(level: Out<u64>, array: u64, number: u32)
        "cuMipmappedArrayGetLevel" 5000 => array::level;
    cuMipmappedArrayGetMemoryRequirements(requirements: Out<[u64; 4]>, array: u64, device: i32)
        "cuMipmappedArrayGetMemoryRequirements" 11060 => array::requirements_mipmapped;
    cuMemMapArrayAsync(list: In<u8>, count: u32, stream: usize)
        "cuMemMapArrayAsync" 11010 | cuMemMapArrayAsync_ptsz 11010 => array::map;

    cuStreamCreate(stream: Out<usize>, flags: u32) "cuStreamCreate" 2000 => stream::create;
    cuStreamCreateWithPriority(stream: Out<usize>, flags: u32, priority: i32)
        "cuStreamCreateWithPriority" 5050 => stream::create_with_priority;
    cuStreamDestroy(stream: usize) "cuStreamDestroy" 2000 => stream::destroy;
    cuStreamDestroy_v2(stream: usize) "cuStreamDestroy" 4000 => stream::destroy;
    cuStreamSynchronize(stream: usize)
        "cuStreamSynchronize" 2000 | cuStreamSynchronize_ptsz 7000 => stream::synchronize;
    cuStreamQuery(stream: usize) "cuStreamQuery" 2000 | cuStreamQuery_ptsz 7000 => stream::query;
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32)
        "cuStreamWaitEvent" 3020 | cuStreamWaitEvent_ptsz 7000 => stream::wait_event;
    cuStreamGetFlags(stream: usize, flags: Out<u32>)
        "cuStreamGetFlags" 5050 | cuStreamGetFlags_ptsz 7000 => stream::flags;
    cuStreamGetPriority(stream: usize, priority: Out<i32>)
        "cuStreamGetPriority" 5050 | cuStreamGetPriority_ptsz 7000 => stream::priority;
    cuStreamGetCtx(stream: usize, context: Out<usize>)
        "cuStreamGetCtx" 9020 | cuStreamGetCtx_ptsz 9020 => stream::context;
    cuStreamGetId(stream: usize, id: Out<u64>)
        "cuStreamGetId" 12000 | cuStreamGetId_ptsz 12000 => stream::id;
    cuStreamGetDevice(stream: usize, device: Out<i32>)
        "cuStreamGetDevice" 12080 | cuStreamGetDevice_ptsz 12080 => stream::device;
    cuStreamAddCallback(stream: usize, callback: usize, data: usize, flags: u32)
        "cuStreamAddCallback" 5000 | cuStreamAddCallback_ptsz 7000 => stream::callback;
    cuStreamAttachMemAsync(stream: usize, address: u64, bytes: usize, flags: u32)
        "cuStreamAttachMemAsync" 6000 | cuStreamAttachMemAsync_ptsz 7000 => stream::attach;
    cuLaunchHostFunc(stream: usize, function: usize, data: usize)
        "cuLaunchHostFunc" 10000 | cuLaunchHostFunc_ptsz 10000 => stream::host_function;
    cuStreamBeginCapture(stream: usize)
        "cuStreamBeginCapture" 10000 | cuStreamBeginCapture_ptsz 10000 => stream::begin_capture;
    cuStreamBeginCapture_v2(stream: usize, mode: i32)
        "cuStreamBeginCapture" 10010 | cuStreamBeginCapture_v2_ptsz 10010
        => stream::begin_capture_v2;
    cuStreamBeginCaptureToGraph(
        stream: usize, graph: usize, dependencies: usize, edges: usize, count: usize, mode: i32)
        "cuStreamBeginCaptureToGraph" 12030 | cuStreamBeginCaptureToGraph_ptsz 12030
        => stream::begin_capture_to_graph;
    cuStreamBeginRecaptureToGraph(
        stream: usize, mode: i32, graph: usize, callback: usize, data: usize)
        "cuStreamBeginRecaptureToGraph" 13030 | cuStreamBeginRecaptureToGraph_ptsz 13030
        => stream::begin_recapture;
    cuStreamEndCapture(stream: usize, graph: Out<usize>)
        "cuStreamEndCapture" 10000 | cuStreamEndCapture_ptsz 10000 => stream::end_capture;
    cuStreamIsCapturing(stream: usize, status: Out<i32>)
        "cuStreamIsCapturing" 10000 | cuStreamIsCapturing_ptsz 10000 => stream::is_capturing;
    cuStreamGetCaptureInfo(stream: usize, status: Out<i32>, id: Out<u64>)
        "cuStreamGetCaptureInfo" 10010 | cuStreamGetCaptureInfo_ptsz 10010 => stream::capture_info;
    cuStreamGetCaptureInfo_v2(
        stream: usize, status: Out<i32>, id: Out<u64>, graph: Out<usize>, dependencies: Out<usize>,
        count: Out<usize>)
        "cuStreamGetCaptureInfo" 11030 | cuStreamGetCaptureInfo_v2_ptsz 11030
        => stream::capture_info_v2;
    cuStreamGetCaptureInfo_v3(
        stream: usize, status: Out<i32>, id: Out<u64>, graph: Out<usize>, dependencies: Out<usize>,
        edges: Out<usize>, count: Out<usize>)
        "cuStreamGetCaptureInfo" 12030 | cuStreamGetCaptureInfo_v3_ptsz 12030
        => stream::capture_info_v3;
    cuThreadExchangeStreamCaptureMode(mode: Out<i32>)
        "cuThreadExchangeStreamCaptureMode" 10010 => stream::exchange_mode;
    cuEventCreate(event: Out<usize>, flags: u32) "cuEventCreate" 2000 => stream::create_event;
    cuEventDestroy(event: usize) "cuEventDestroy" 2000 => stream::destroy_event;
    cuEventDestroy_v2(event: usize) "cuEventDestroy" 4000 => stream::destroy_event;
    cuEventRecord(event: usize, stream: usize)
        "cuEventRecord" 2000 | cuEventRecord_ptsz 7000 => stream::record;
    cuEventRecordWithFlags(event: usize, stream: usize, flags: u32)
        "cuEventRecordWithFlags" 11010 | cuEventRecordWithFlags_ptsz 11010
        => stream::record_with_flags;
    cuEventQuery(event: usize) "cuEventQuery" 2000 => stream::query_event;
    cuEventSynchronize(event: usize) "cuEventSynchronize" 2000 => stream::synchronize_event;
    cuEventElapsedTime(ms: Out<f32>, start: usize, end: usize)
        "cuEventElapsedTime" 2000 => stream::elapsed;
    cuEventElapsedTime_v2(ms: Out<f32>, start: usize, end: usize)
        "cuEventElapsedTime" 12080 => stream::elapsed;

    cuGraphCreate(graph: Out<usize>, flags: u32) "cuGraphCreate" 10000 => graph::create;
    cuGraphAddMemAllocNode(
        node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize, params: Out<u8>)
        "cuGraphAddMemAllocNode" 11040 => graph::add_alloc_node;
    cuGraphAddMemFreeNode(
        node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize, address: u64)
        "cuGraphAddMemFreeNode" 11040 => graph::add_free_node;
    cuGraphAddKernelNode(
        node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize, params: In<usize>)
        "cuGraphAddKernelNode" 10000 => graph::add_kernel_node_v1;
    cuGraphAddKernelNode_v2(
        node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize, params: In<u8>)
        "cuGraphAddKernelNode" 12000 => graph::add_kernel_node_v2;
    cuGraphAddChildGraphNode(
        node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize, child: usize)
        "cuGraphAddChildGraphNode" 10000 => graph::add_child_node;
    cuGraphAddEmptyNode(node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize)
        "cuGraphAddEmptyNode" 10000 => graph::add_empty_node;
    cuGraphAddNode(
        node: Out<usize>, graph: usize, dependencies: In<usize>, count: usize, params: Out<u8>)
        "cuGraphAddNode" 12020 => graph::add_node;
    cuGraphAddNode_v2(
        node: Out<usize>, graph: usize, dependencies: In<usize>, edges: In<u8>, count: usize,
        params: Out<u8>) "cuGraphAddNode" 12030 => graph::add_node_v2;
    cuGraphAddNode_v3(
        node: Out<usize>, graph: usize, dependencies: In<usize>, edges: In<u8>, count: usize,
        params: Out<u8>) "cuGraphAddNode" 13050 => graph::add_node_v2;
    cuGraphKernelNodeSetParams(node: usize, params: In<usize>)
        "cuGraphKernelNodeSetParams" 10000 => graph::set_kernel_node_v1;
    cuGraphKernelNodeSetParams_v2(node: usize, params: In<u8>)
        "cuGraphKernelNodeSetParams" 12000 => graph::set_kernel_node_v2;
    cuGraphNodeSetParams(node: usize, params: In<u8>)
        "cuGraphNodeSetParams" 12020 => graph::set_node_params;
    cuGraphNodeSetParams_v2(node: usize, params: In<u8>)
        "cuGraphNodeSetParams" 13050 => graph::set_node_params;
    cuGraphConditionalHandleCreate(
        handle: Out<u64>, graph: usize, context: usize, value: u32, flags: u32)
        "cuGraphConditionalHandleCreate" 12030 => graph::conditional_handle;
    cuGraphNodeGetType(node: usize, number: Out<i32>)
        "cuGraphNodeGetType" 10000 => graph::node_type;
    cuGraphKernelNodeGetParams(node: usize, params: Out<u8>)
        "cuGraphKernelNodeGetParams" 10000 => graph::kernel_params_v1;
    cuGraphKernelNodeGetParams_v2(node: usize, params: Out<u8>)
        "cuGraphKernelNodeGetParams" 12000 => graph::kernel_params_v2;
    cuGraphMemAllocNodeGetParams(node: usize, params: Out<u8>)
        "cuGraphMemAllocNodeGetParams" 11040 => graph::alloc_params;
    cuGraphMemFreeNodeGetParams(node: usize, address: Out<u64>)
        "cuGraphMemFreeNodeGetParams" 11040 => graph::free_params;
    cuGraphChildGraphNodeGetGraph(node: usize, graph: Out<usize>)
        "cuGraphChildGraphNodeGetGraph" 10000 => graph::child_graph;
    cuGraphInstantiate(
        exec: Out<usize>, graph: usize, error_node: Out<usize>, log: Out<u8>, log_size: usize)
        "cuGraphInstantiate" 10000 => graph::instantiate;
    cuGraphInstantiate_v2(
        exec: Out<usize>, graph: usize, error_node: Out<usize>, log: Out<u8>, log_size: usize)
        "cuGraphInstantiate" 11000 => graph::instantiate;
    cuGraphInstantiateWithFlags(exec: Out<usize>, graph: usize, flags: u64)
        "cuGraphInstantiateWithFlags" 11040 => graph::instantiate_with_flags;
    cuGraphInstantiateWithParams(exec: Out<usize>, graph: usize, params: Out<[u64; 4]>)
        "cuGraphInstantiateWithParams" 12000 | cuGraphInstantiateWithParams_ptsz 12000
        => graph::instantiate_with_params;
    cuGraphUpload(exec: usize, stream: usize)
        "cuGraphUpload" 11010 | cuGraphUpload_ptsz 11010 => graph::upload;
    cuGraphLaunch(exec: usize, stream: usize)
        "cuGraphLaunch" 10000 | cuGraphLaunch_ptsz 10000 => graph::launch;
    cuGraphExecUpdate(exec: usize, graph: usize, error_node: Out<usize>, result: Out<i32>)
        "cuGraphExecUpdate" 10020 => graph::update;
    cuGraphExecUpdate_v2(exec: usize, graph: usize, info: Out<[u64; 3]>)
        "cuGraphExecUpdate" 12000 => graph::update_v2;
    cuGraphExecKernelNodeSetParams(exec: usize, node: usize, params: In<usize>)
        "cuGraphExecKernelNodeSetParams" 10010 => graph::set_kernel_v1;
    cuGraphExecKernelNodeSetParams_v2(exec: usize, node: usize, params: In<u8>)
        "cuGraphExecKernelNodeSetParams" 12000 => graph::set_kernel_v2;
    cuGraphExecChildGraphNodeSetParams(exec: usize, node: usize, child: usize)
        "cuGraphExecChildGraphNodeSetParams" 11010 => graph::set_child;
    cuGraphExecNodeSetParams(exec: usize, node: usize, params: In<u8>)
        "cuGraphExecNodeSetParams" 12020 => graph::set_node;
    cuGraphExecDestroy(exec: usize) "cuGraphExecDestroy" 10000 => graph::destroy_exec;
    cuGraphDestroy(graph: usize) "cuGraphDestroy" 10000 => graph::destroy;
    cuGraphClone(clone: Out<usize>, graph: usize) "cuGraphClone" 10000 => graph::clone;
    cuGraphGetNodes(graph: usize, nodes: Out<usize>, count: Out<usize>)
        "cuGraphGetNodes" 10000 => graph::nodes;
    cuDeviceGraphMemTrim(device: i32) "cuDeviceGraphMemTrim" 11040 => graph::trim;
    cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>)
        "cuDeviceGetGraphMemAttribute" 11040 => graph::attribute;
    cuDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: In<u64>)
        "cuDeviceSetGraphMemAttribute" 11040 => graph::set_attribute;

    cuModuleLoad(module: Out<usize>, file: Text) "cuModuleLoad" 2000 => module::load_file;
    cuModuleLoadData(module: Out<usize>, image: Text) "cuModuleLoadData" 2000 => module::load;
    cuModuleLoadDataEx(
        module: Out<usize>, image: Text, count: u32, options: In<i32>, values: In<usize>)
        "cuModuleLoadDataEx" 2010 => module::load_with_options;
    cuModuleLoadFatBinary(module: Out<usize>, image: Text)
        "cuModuleLoadFatBinary" 2000 => module::load;
    cuModuleUnload(module: usize) "cuModuleUnload" 2000 => module::unload;
    cuModuleGetFunction(function: Out<usize>, module: usize, name: Text)
        "cuModuleGetFunction" 2000 => module::function;
    cuModuleEnumerateFunctions(list: Out<usize>, count: u32, module: usize)
        "cuModuleEnumerateFunctions" 12040 => module::functions;
    cuModuleGetFunctionCount(count: Out<u32>, module: usize)
        "cuModuleGetFunctionCount" 12040 => module::function_count;
    cuModuleGetGlobal_v2(dptr: Out<u64>, bytes: Out<usize>, module: usize, name: Text)
        "cuModuleGetGlobal" 3020 => module::global;
    cuModuleGetLoadingMode(mode: Out<i32>) "cuModuleGetLoadingMode" 11070 => module::loading_mode;
    cuLibraryLoadData(
        library: Out<usize>, code: Text, options: In<i32>, values: In<usize>, count: u32,
        library_options: In<i32>, library_values: In<usize>, library_count: u32)
        "cuLibraryLoadData" 12000 => module::load_library;
    cuLibraryLoadFromFile(
        library: Out<usize>, file: Text, options: In<i32>, values: In<usize>, count: u32,
        library_options: In<i32>, library_values: In<usize>, library_count: u32)
        "cuLibraryLoadFromFile" 12000 => module::load_library_file;
    cuLibraryUnload(library: usize) "cuLibraryUnload" 12000 => module::unload_library;
    cuLibraryGetModule(module: Out<usize>, library: usize)
        "cuLibraryGetModule" 12000 => module::library_module;
    cuLibraryGetKernel(kernel: Out<usize>, library: usize, name: Text)
        "cuLibraryGetKernel" 12000 => module::library_kernel;
    cuLibraryGetGlobal(dptr: Out<u64>, bytes: Out<usize>, library: usize, name: Text)
        "cuLibraryGetGlobal" 12000 => module::library_global;
    cuLibraryEnumerateKernels(list: Out<usize>, count: u32, library: usize)
        "cuLibraryEnumerateKernels" 12040 => module::kernels;
    cuLibraryGetKernelCount(count: Out<u32>, library: usize)
        "cuLibraryGetKernelCount" 12040 => module::kernel_count;
    cuKernelGetFunction(function: Out<usize>, kernel: usize)
        "cuKernelGetFunction" 12000 => module::kernel_function;
    cuKernelGetAttribute(value: Out<i32>, attribute: i32, kernel: usize, device: i32)
        "cuKernelGetAttribute" 12000 => module::kernel_attribute;
    cuKernelSetAttribute(attribute: i32, value: i32, kernel: usize, device: i32)
        "cuKernelSetAttribute" 12000 => module::set_kernel_attribute;
    cuKernelSetCacheConfig(kernel: usize, config: i32, device: i32)
        "cuKernelSetCacheConfig" 12000 => module::set_kernel_cache_config;
    cuKernelGetParamInfo(kernel: usize, index: usize, offset: Out<usize>, size: Out<usize>)
        "cuKernelGetParamInfo" 12040 => module::param_info;
    cuKernelGetParamCount(kernel: usize, count: Out<usize>)
        "cuKernelGetParamCount" 13050 => module::param_count;
    cuKernelGetLibrary(library: Out<usize>, kernel: usize)
        "cuKernelGetLibrary" 12050 => module::kernel_library;
    cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: usize)
        "cuFuncGetAttribute" 2020 => module::function_attribute;
    cuFuncSetAttribute(function: usize, attribute: i32, value: i32)
        "cuFuncSetAttribute" 9000 => module::set_function_attribute;
    cuFuncSetCacheConfig(function: usize, config: i32)
        "cuFuncSetCacheConfig" 3000 => module::set_function_config;
    cuFuncSetSharedMemConfig(function: usize, config: i32)
        "cuFuncSetSharedMemConfig" 4020 => module::set_function_config;
    cuFuncGetModule(module: Out<usize>, function: usize)
        "cuFuncGetModule" 11000 => module::function_module;
    cuFuncLoad(function: usize) "cuFuncLoad" 12040 => module::load_function;
    cuLaunchKernel(
        function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: usize, params: usize, extra: usize)
        "cuLaunchKernel" 4000 | cuLaunchKernel_ptsz 7000 => module::launch;
    cuLaunchKernelEx(config: In<u8>, function: usize, params: usize, extra: usize)
        "cuLaunchKernelEx" 11060 | cuLaunchKernelEx_ptsz 11060 => module::launch_ex;
    cuLaunchCooperativeKernel(
        function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: usize, params: usize)
        "cuLaunchCooperativeKernel" 9000 | cuLaunchCooperativeKernel_ptsz 9000
        => module::launch_cooperative;
    cuLaunchCooperativeKernelMultiDevice(list: In<[u64; 7]>, count: u32, flags: u32)
        "cuLaunchCooperativeKernelMultiDevice" 9000 => module::launch_multi_device;
    cuLaunch(function: usize) "cuLaunch" 2000 => module::launch_one;
    cuLaunchGrid(function: usize, width: i32, height: i32)
        "cuLaunchGrid" 2000 => module::launch_grid;
    cuLaunchGridAsync(function: usize, width: i32, height: i32, stream: usize)
        "cuLaunchGridAsync" 2000 => module::launch_grid_async;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        count: Out<i32>, function: usize, threads: i32, shared: usize)
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 => module::occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<i32>, function: usize, threads: i32, shared: usize, flags: u32)
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 => module::occupancy_with_flags;
    cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: usize, shared_of: usize, shared: usize,
        limit: i32) "cuOccupancyMaxPotentialBlockSize" 6050 => module::block_size;
    cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: usize, shared_of: usize, shared: usize,
        limit: i32, flags: u32)
        "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 => module::block_size_with_flags;
    cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: usize, blocks: i32, threads: i32)
        "cuOccupancyAvailableDynamicSMemPerBlock" 10020 => module::dynamic_shared;
    cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: usize, config: In<u8>)
        "cuOccupancyMaxPotentialClusterSize" 11070 => module::cluster_size;
    cuOccupancyMaxActiveClusters(count: Out<i32>, function: usize, config: In<u8>)
        "cuOccupancyMaxActiveClusters" 11070 => module::active_clusters;

    cuCheckpointProcessGetState(pid: i32, state: Out<i32>)
        "cuCheckpointProcessGetState" 12080 => checkpoint::state;
    cuCheckpointProcessGetRestoreThreadId(pid: i32, thread: Out<i32>)
        "cuCheckpointProcessGetRestoreThreadId" 12080 => checkpoint::restore_thread;
    cuCheckpointProcessLock(pid: i32, options: In<[u64; 8]>)
        "cuCheckpointProcessLock" 12080 => checkpoint::lock;
    cuCheckpointProcessCheckpoint(pid: i32, options: In<[u64; 8]>)
        "cuCheckpointProcessCheckpoint" 12080 => checkpoint::checkpoint;
    cuCheckpointProcessRestore(pid: i32, options: In<[u64; 8]>)
        "cuCheckpointProcessRestore" 12080 => checkpoint::restore;
    cuCheckpointProcessUnlock(pid: i32, options: In<[u64; 8]>)
        "cuCheckpointProcessUnlock" 12080 => checkpoint::unlock;

    // gpulimit does not hook these second names (`unseen…`). So tests can call functions as the
    // driver itself would.
    unseenStreamCreate(stream: Out<usize>, flags: u32) "unseenStreamCreate" 2000 => stream::create;
    unseenCtxCreate(context: Out<usize>, flags: u32, device: i32)
        "unseenCtxCreate" 2000 => context::create;
    unseenMemPoolCreate(pool: Out<usize>, props: In<u8>) "unseenMemPoolCreate" 2000 => pool::create;
    unseenModuleGetFunction(function: Out<usize>, module: usize, name: Text)
        "unseenModuleGetFunction" 2000 => module::function;
    unseenLibraryGetKernel(kernel: Out<usize>, library: usize, name: Text)
        "unseenLibraryGetKernel" 2000 => module::library_kernel;
    unseenGraphCreate(graph: Out<usize>, flags: u32) "unseenGraphCreate" 2000 => graph::create;
    unseenGraphInstantiate(exec: Out<usize>, graph: usize, flags: u64)
        "unseenGraphInstantiate" 2000 => graph::instantiate_with_flags;

    cuProfilerStart() "cuProfilerStart" 4000 => device::profiler;
    cuProfilerStop() "cuProfilerStop" 4000 => device::profiler;
}

/// From CUDA 12 on, the name `cuGraphInstantiate` means `cuGraphInstantiateWithFlags`.
pub static ALIASES: &[Symbol] = &[Symbol {
    base: "cuGraphInstantiate",
    version: 12_000,
    per_thread: false,
    address: Address(cuGraphInstantiateWithFlags as *const ()),
}];

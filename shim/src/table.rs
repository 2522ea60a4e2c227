//! The hook table: every function of the driver that we stand in front of, and every one that we
//! call.
//!
//! The only place that names CUDA and NVML symbols. It is read twice: `driver/functions.rs` makes
//! the calls of the driver's functions of it, `entry/exports.rs` the functions of ours that stand
//! in front of them. What its types and handlers are called is the readers' affair: this file knows
//! none of them. To add a hook see CONTRIBUTING.md.

/// Hands the table to the macro of this name.
macro_rules! table {
    ($reader:ident) => { $reader! {
        /// libcuda.so.1
        library cuda(CUDA, c"libcuda.so.1", missing = CUDA_ERROR_NOT_FOUND, broken = CUDA_ERROR_UNKNOWN) {
            hooks {
                sized    cuMemAlloc(dptr: Out<DevicePtrV1>, bytesize: u32) => linear::alloc_v1;
                sized    cuMemAlloc_v2(dptr: Out<DevicePtr>, bytesize: usize) => linear::alloc, as hot;
                sized    cuMemAllocPitch(dptr: Out<DevicePtrV1>, pitch: Out<u32>, width: u32, height: u32, element: u32) => linear::alloc_pitch_v1;
                sized    cuMemAllocPitch_v2(dptr: Out<DevicePtr>, pitch: Out<usize>, width: usize, height: usize, element: u32) => linear::alloc_pitch;
                sized    cuMemAllocManaged(dptr: Out<DevicePtr>, bytesize: usize, flags: u32) => managed::alloc;
                release  cuMemFree(dptr: DevicePtrV1) => linear::free_v1;
                release  cuMemFree_v2(dptr: DevicePtr) => linear::free, as hot;

                sized    cuMemCreate(handle: Out<AllocationHandle>, size: usize, prop: In<AllocationProp>, flags: u64) => vmm::create;
                release  cuMemRelease(handle: AllocationHandle) => vmm::release;
                track    cuMemMap(ptr: DevicePtr, size: usize, offset: usize, handle: AllocationHandle, flags: u64) => vmm::map;
                release  cuMemUnmap(ptr: DevicePtr, size: usize) => vmm::unmap;
                track    cuMemRetainAllocationHandle(handle: Out<AllocationHandle>, address: Opaque) => vmm::retain;
                track    cuMemExportToShareableHandle(shareable: Opaque, handle: AllocationHandle, kind: i32, flags: u64) => vmm::export;
                track    cuMemImportFromShareableHandle(handle: Out<AllocationHandle>, os_handle: Opaque, kind: i32) => vmm::import;

                track    cuIpcGetMemHandle(handle: Opaque, dptr: DevicePtr) => ipc::get;
                track    cuIpcOpenMemHandle(dptr: Out<DevicePtr>, handle: IpcHandle, flags: u32) => ipc::open;
                track    cuIpcOpenMemHandle_v2(dptr: Out<DevicePtr>, handle: IpcHandle, flags: u32) => ipc::open;
                release  cuIpcCloseMemHandle(dptr: DevicePtr) => ipc::close;

                sized    cuArrayCreate_v2(array: Out<Array>, descriptor: In<ArrayDescriptor>) => array::create;
                sized    cuArray3DCreate_v2(array: Out<Array>, descriptor: In<Array3dDescriptor>) => array::create_3d;
                release  cuArrayDestroy(array: Array) => array::destroy;
                sized    cuMipmappedArrayCreate(array: Out<Array>, descriptor: In<Array3dDescriptor>, levels: u32) => array::create_mipmapped;
                release  cuMipmappedArrayDestroy(array: Array) => array::destroy_mipmapped;

                pooled   cuMemAllocAsync(dptr: Out<DevicePtr>, bytesize: usize, stream: Stream) => pool::alloc, as hot;
                pooled   cuMemAllocAsync_ptsz(dptr: Out<DevicePtr>, bytesize: usize, stream: Stream) => pool::alloc, as hot;
                pooled   cuMemAllocFromPoolAsync(dptr: Out<DevicePtr>, bytesize: usize, pool: MemPool, stream: Stream) => pool::alloc_from;
                pooled   cuMemAllocFromPoolAsync_ptsz(dptr: Out<DevicePtr>, bytesize: usize, pool: MemPool, stream: Stream) => pool::alloc_from;
                pooled   cuMemFreeAsync(dptr: DevicePtr, stream: Stream) => pool::free, as hot;
                pooled   cuMemFreeAsync_ptsz(dptr: DevicePtr, stream: Stream) => pool::free, as hot;
                track    cuMemPoolCreate(pool: Out<MemPool>, props: In<AllocationProp>) => pool::create;
                release  cuMemPoolDestroy(pool: MemPool) => pool::destroy;
                release  cuMemPoolTrimTo(pool: MemPool, keep: usize) => pool::trim;
                track    cuMemPoolSetAttribute(pool: MemPool, attribute: i32, value: Opaque) => pool::set_attribute;
                track    cuDeviceSetMemPool(device: Device, pool: MemPool) => pool::set_current;
                track    cuMemGetDefaultMemPool(pool: Out<MemPool>, location: In<Location>, kind: i32) => pool::find;
                track    cuMemGetMemPool(pool: Out<MemPool>, location: In<Location>, kind: i32) => pool::find;
                track    cuMemSetMemPool(location: In<Location>, kind: i32, pool: MemPool) => pool::set_current_at;
                pooled   cuStreamSynchronize(stream: Stream) => synchronize::work, as wait;
                pooled   cuStreamSynchronize_ptsz(stream: Stream) => synchronize::work, as wait;
                pooled   cuEventSynchronize(event: Event) => synchronize::work, as wait;
                pooled   cuCtxSynchronize() => synchronize::all_work, as wait;
                pooled   cuCtxSynchronize_v2(context: Context) => synchronize::all_work, as wait;

                measured cuDevicePrimaryCtxRetain(context: Out<Context>, device: Device) => context::retain_primary;
                release  cuDevicePrimaryCtxRelease(device: Device) => context::release_primary;
                release  cuDevicePrimaryCtxRelease_v2(device: Device) => context::release_primary;
                release  cuDevicePrimaryCtxReset(device: Device) => context::release_primary;
                release  cuDevicePrimaryCtxReset_v2(device: Device) => context::release_primary;
                measured cuCtxCreate(context: Out<Context>, flags: u32, device: Device) => context::create;
                measured cuCtxCreate_v2(context: Out<Context>, flags: u32, device: Device) => context::create;
                measured cuCtxCreate_v3(context: Out<Context>, affinity: Opaque, count: i32, flags: u32, device: Device) => context::create_v3;
                measured cuCtxCreate_v4(context: Out<Context>, params: Opaque, flags: u32, device: Device) => context::create_v4;
                measured cuGLCtxCreate(context: Out<Context>, flags: u32, device: Device) => context::create;
                measured cuGLCtxCreate_v2(context: Out<Context>, flags: u32, device: Device) => context::create;
                measured cuVDPAUCtxCreate(context: Out<Context>, flags: u32, device: Device, vdp_device: u32, get_proc_address: Opaque) => context::create_vdpau;
                measured cuVDPAUCtxCreate_v2(context: Out<Context>, flags: u32, device: Device, vdp_device: u32, get_proc_address: Opaque) => context::create_vdpau;
                measured cuGreenCtxCreate(green: Out<Opaque>, description: Opaque, device: Device, flags: u32) => green::create;
                release  cuGreenCtxDestroy(green: Opaque) => green::destroy;
                measured cuGreenCtxStreamCreate(stream: Out<Stream>, green: Opaque, flags: u32, priority: i32) => green::stream;
                track    cuDevicePrimaryCtxSetFlags_v2(device: Device, flags: u32) => context::set_primary_flags;
                track    cuCtxSetFlags(flags: u32) => context::set_flags;
                sized    cuCtxSetLimit(limit: i32, value: usize) => limits::set;
                release  cuCtxDestroy(context: Context) => context::destroy;
                release  cuCtxDestroy_v2(context: Context) => context::destroy;
                release  cuCtxDetach(context: Context) => context::destroy;

                measured cuModuleLoad(module: Out<Opaque>, path: FileName) => code::module_file;
                measured cuModuleLoadData(module: Out<Opaque>, image: Image) => code::module;
                measured cuModuleLoadFatBinary(module: Out<Opaque>, image: Image) => code::module;
                measured cuModuleLoadDataEx(module: Out<Opaque>, image: Image, count: u32, options: Opaque, values: Opaque) => code::module_ex;
                release  cuModuleUnload(module: Opaque) => code::unload;
                measured cuLibraryLoadData(library: Out<Opaque>, code: Image, jit_options: Opaque, jit_values: Opaque, jit_count: u32, options: Opaque, values: Opaque, count: u32) => code::library;
                measured cuLibraryLoadFromFile(library: Out<Opaque>, path: FileName, jit_options: Opaque, jit_values: Opaque, jit_count: u32, options: Opaque, values: Opaque, count: u32) => code::library_file;
                release  cuLibraryUnload(library: Opaque) => code::unload_library;
                measured cuLibraryGetModule(module: Out<Opaque>, library: Opaque) => code::library_module;
                measured cuLibraryGetGlobal(dptr: Out<DevicePtr>, bytes: Out<usize>, library: Opaque, name: Opaque) => code::global;
                track    cuLibraryGetKernel(kernel: Out<Opaque>, library: Opaque, name: Opaque) => code::kernel;
                track    cuLibraryEnumerateKernels(kernels: Out<Opaque>, count: u32, library: Opaque) => handles::kernels;
                track    cuModuleEnumerateFunctions(functions: Out<Opaque>, count: u32, module: Opaque) => handles::functions;
                measured cuKernelGetFunction(function: Out<Opaque>, kernel: Opaque) => code::kernel_function;

                measured cuKernelSetAttribute(attribute: i32, value: i32, kernel: Opaque, device: Device) => lazy::set_attribute, unless is_loaded: kernel;
                measured cuKernelSetCacheConfig(kernel: Opaque, config: i32, device: Device) => lazy::set_cache_config, unless is_loaded: kernel;
                measured cuKernelGetParamInfo(kernel: Opaque, index: usize, offset: Out<usize>, size: Out<usize>) => lazy::param_info, unless is_loaded: kernel;
                measured cuKernelGetParamCount(kernel: Opaque, count: Out<usize>) => lazy::param_count, unless is_loaded: kernel;
                measured cuModuleGetFunction(function: Out<Opaque>, module: Opaque, name: Opaque) => code::module_function;
                measured cuFuncLoad(function: Opaque) => lazy::function, unless is_loaded: function;
                measured cuFuncSetAttribute(function: Opaque, attribute: i32, value: i32) => lazy::set_function_attribute, unless is_loaded: function;
                measured cuFuncSetCacheConfig(function: Opaque, config: i32) => lazy::set_function_config, unless is_loaded: function;
                measured cuFuncSetSharedMemConfig(function: Opaque, config: i32) => lazy::set_function_config, unless is_loaded: function;
                measured cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<i32>, function: Opaque, threads: i32, shared: usize) => lazy::active_blocks, unless is_loaded: function;
                measured cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: Out<i32>, function: Opaque, threads: i32, shared: usize, flags: u32) => lazy::active_blocks_with_flags, unless is_loaded: function;
                measured cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: Opaque, shared_of: Opaque, shared: usize, limit: i32) => lazy::block_size, unless is_loaded: function;
                measured cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: Opaque, shared_of: Opaque, shared: usize, limit: i32, flags: u32) => lazy::block_size_with_flags, unless is_loaded: function;
                measured cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Opaque, blocks: i32, threads: i32) => lazy::dynamic_shared, unless is_loaded: function;
                measured cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: Opaque, config: Opaque) => lazy::clusters, unless is_loaded: function;
                measured cuOccupancyMaxActiveClusters(count: Out<i32>, function: Opaque, config: Opaque) => lazy::clusters, unless is_loaded: function;

                launch   cuLaunchKernel(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque, extra: Opaque) => launch::kernel, known by rdi function;
                launch   cuLaunchKernel_ptsz(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque, extra: Opaque) => launch::kernel, known by rdi function;
                launch   cuLaunchKernelEx(config: In<LaunchConfig>, function: Opaque, params: Opaque, extra: Opaque) => launch::kernel_ex, known by rsi function;
                launch   cuLaunchKernelEx_ptsz(config: In<LaunchConfig>, function: Opaque, params: Opaque, extra: Opaque) => launch::kernel_ex, known by rsi function;
                launch   cuLaunchCooperativeKernel(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque) => launch::cooperative, known by rdi function;
                launch   cuLaunchCooperativeKernel_ptsz(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque) => launch::cooperative, known by rdi function;
                launch   cuLaunchCooperativeKernelMultiDevice(list: In<LaunchParams>, count: u32, flags: u32) => launch::multi_device;
                launch   cuLaunch(function: Opaque) => launch::plain, known by rdi function;
                launch   cuLaunchGrid(function: Opaque, width: i32, height: i32) => launch::grid, known by rdi function;
                launch   cuLaunchGridAsync(function: Opaque, width: i32, height: i32, stream: Stream) => launch::grid_async, known by rdi function;

                measured cuStreamCreate(stream: Out<Stream>, flags: u32) => measured::stream;
                measured cuStreamCreateWithPriority(stream: Out<Stream>, flags: u32, priority: i32) => measured::stream_with_priority;
                track    cuStreamDestroy(stream: Stream) => handles::destroy_stream;
                track    cuStreamDestroy_v2(stream: Stream) => handles::destroy_stream;
                track    cuStreamEndCapture(stream: Stream, graph: Out<Graph>) => handles::end_capture;
                track    cuStreamEndCapture_ptsz(stream: Stream, graph: Out<Graph>) => handles::end_capture;
                track    cuGraphCreate(graph: Out<Graph>, flags: u32) => handles::create_graph;
                track    cuGraphClone(clone: Out<Graph>, original: Graph) => handles::clone_graph;
                track    cuGraphDestroy(graph: Graph) => handles::destroy_graph;
                measured cuGraphAddKernelNode(node: Out<Node>, graph: Graph, dependencies: Opaque, count: usize, params: In<KernelNodeParamsV1>) => graph_node::add_kernel_v1;
                measured cuGraphAddKernelNode_v2(node: Out<Node>, graph: Graph, dependencies: Opaque, count: usize, params: In<KernelNodeParams>) => graph_node::add_kernel;
                measured cuGraphAddNode(node: Out<Node>, graph: Graph, dependencies: Opaque, count: usize, params: In<NodeParams>) => graph_node::add;
                measured cuGraphAddNode_v2(node: Out<Node>, graph: Graph, dependencies: Opaque, edges: Opaque, count: usize, params: In<NodeParams>) => graph_node::add_with_edges;
                measured cuGraphAddNode_v3(node: Out<Node>, graph: Graph, dependencies: Opaque, edges: Opaque, count: usize, params: In<NodeParams>) => graph_node::add_with_edges;
                measured cuGraphKernelNodeSetParams(node: Node, params: In<KernelNodeParamsV1>) => graph_node::set_kernel_v1;
                measured cuGraphKernelNodeSetParams_v2(node: Node, params: In<KernelNodeParams>) => graph_node::set_kernel;
                measured cuGraphNodeSetParams(node: Node, params: In<NodeParams>) => graph_node::set;
                measured cuGraphNodeSetParams_v2(node: Node, params: In<NodeParams>) => graph_node::set;
                measured cuGraphInstantiate(exec: Out<GraphExec>, graph: Graph, error_node: Opaque, log: Opaque, log_size: usize) => graph::instantiate_with_log;
                measured cuGraphInstantiate_v2(exec: Out<GraphExec>, graph: Graph, error_node: Opaque, log: Opaque, log_size: usize) => graph::instantiate_with_log;
                measured cuGraphInstantiateWithFlags(exec: Out<GraphExec>, graph: Graph, flags: u64) => graph::instantiate_with_flags;
                measured cuGraphInstantiateWithParams(exec: Out<GraphExec>, graph: Graph, params: In<GraphInstantiateParams>) => graph::instantiate_with_params;
                measured cuGraphInstantiateWithParams_ptsz(exec: Out<GraphExec>, graph: Graph, params: In<GraphInstantiateParams>) => graph::instantiate_with_params;

                launch   cuGraphExecUpdate(exec: GraphExec, graph: Graph, error_node: Opaque, result: Opaque) => graph_update::update;
                launch   cuGraphExecUpdate_v2(exec: GraphExec, graph: Graph, info: Opaque) => graph_update::update_v2;
                launch   cuGraphExecKernelNodeSetParams(exec: GraphExec, node: Node, params: In<KernelNodeParamsV1>) => graph_update::set_kernel_v1;
                launch   cuGraphExecKernelNodeSetParams_v2(exec: GraphExec, node: Node, params: In<KernelNodeParams>) => graph_update::set_kernel;
                launch   cuGraphExecChildGraphNodeSetParams(exec: GraphExec, node: Node, child: Graph) => graph_update::set_child;
                launch   cuGraphExecNodeSetParams(exec: GraphExec, node: Node, params: In<NodeParams>) => graph_update::set_node;
                launch   cuGraphLaunch(exec: GraphExec, stream: Stream) => graph::launch, known by rdi exec;
                launch   cuGraphLaunch_ptsz(exec: GraphExec, stream: Stream) => graph::launch, known by rdi exec;
                launch   cuGraphUpload(exec: GraphExec, stream: Stream) => graph::launch, known by rdi exec;
                launch   cuGraphUpload_ptsz(exec: GraphExec, stream: Stream) => graph::launch, known by rdi exec;
                track    cuGraphExecDestroy(exec: GraphExec) => graph::destroy;
                release  cuDeviceGraphMemTrim(device: Device) => graph::trim;

                view     cuMemGetInfo(free: Out<u32>, total: Out<u32>) => view::mem_get_info_v1;
                view     cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => view::mem_get_info;
                view     cuDeviceTotalMem(bytes: Out<u32>, device: Device) => view::device_total_mem_v1;
                view     cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) => view::device_total_mem;

                lookup   cuGetProcAddress(symbol: Opaque, pfn: Out<Opaque>, version: i32, flags: u64) => lookup::proc_address;
                lookup   cuGetProcAddress_v2(symbol: Opaque, pfn: Out<Opaque>, version: i32, flags: u64, status: Opaque) => lookup::proc_address_v2;
            }
            calls {
                cuDeviceGetCount(count: Out<i32>);
                cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: Device);
                cuDeviceGetUuid(uuid: Out<Uuid>, device: Device);
                cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: Device);
                cuCtxGetCurrent(context: Out<Context>);
                cuCtxGetDevice(device: Out<Device>);
                cuCtxFromGreenCtx(context: Out<Context>, green: Opaque);
                cuCtxGetLimit(value: Out<usize>, limit: i32);
                cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: Opaque);
                cuKernelGetAttribute(value: Out<i32>, attribute: i32, kernel: Opaque, device: Device);
                cuCtxPushCurrent_v2(context: Context);
                cuCtxPopCurrent_v2(context: Out<Context>);
                cuDevicePrimaryCtxGetState(device: Device, flags: Out<u32>, active: Out<i32>);
                cuStreamGetCtx(stream: Stream, context: Out<Context>);
                cuModuleGetLoadingMode(mode: Out<i32>);
                cuKernelGetLibrary(library: Out<Opaque>, kernel: Opaque);
                cuLibraryGetKernelCount(count: Out<u32>, library: Opaque);
                cuModuleGetFunctionCount(count: Out<u32>, module: Opaque);
                cuStreamQuery(stream: Stream);
                cuStreamQuery_ptsz(stream: Stream);
                cuStreamGetId(stream: Stream, id: Out<u64>);
                cuStreamGetId_ptsz(stream: Stream, id: Out<u64>);
                cuStreamIsCapturing(stream: Stream, status: Out<i32>);
                cuStreamIsCapturing_ptsz(stream: Stream, status: Out<i32>);
                cuThreadExchangeStreamCaptureMode(mode: Out<i32>);
                cuDeviceGetDefaultMemPool(pool: Out<MemPool>, device: Device);
                cuDeviceGetMemPool(pool: Out<MemPool>, device: Device);
                cuMemPoolGetAttribute(pool: MemPool, attribute: i32, value: Out<u64>);
                cuMemGetAddressRange_v2(base: Out<DevicePtr>, bytes: Out<usize>, dptr: DevicePtr);
                cuPointerGetAttribute(value: Out<i32>, attribute: i32, dptr: DevicePtr);
                cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: AllocationHandle);
                cuArrayGetMemoryRequirements(requirements: Out<ArrayMemoryRequirements>, array: Array, device: Device);
                cuMipmappedArrayGetMemoryRequirements(requirements: Out<ArrayMemoryRequirements>, array: Array, device: Device);
                cuGraphGetNodes(graph: Graph, nodes: Opaque, count: Out<usize>);
                cuGraphNodeGetType(node: Node, kind: Out<i32>);
                cuGraphKernelNodeGetParams(node: Node, params: Out<KernelNodeParams>);
                cuGraphKernelNodeGetParams_v2(node: Node, params: Out<KernelNodeParams>);
                cuGraphChildGraphNodeGetGraph(node: Node, graph: Out<Graph>);
                cuGraphMemAllocNodeGetParams(node: Node, params: Out<MemAllocNodeParams>);
                cuGraphMemFreeNodeGetParams(node: Node, dptr: Out<DevicePtr>);
                cuDeviceGetGraphMemAttribute(device: Device, attribute: i32, value: Out<u64>);
            }
        }

        /// libnvidia-ml.so.1
        library nvml(NVML, c"libnvidia-ml.so.1", missing = NVML_ERROR_FUNCTION_NOT_FOUND, broken = NVML_ERROR_UNKNOWN) {
            hooks {
                view nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: Out<NvmlMemory>) => view::nvml_memory_info;
                view nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: Out<NvmlMemoryV2>) => view::nvml_memory_info_v2;

                view nvmlDeviceGetComputeRunningProcesses(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV1>) => process_list::list;
                view nvmlDeviceGetComputeRunningProcesses_v2(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list;
                view nvmlDeviceGetComputeRunningProcesses_v3(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::v3;
                view nvmlDeviceGetGraphicsRunningProcesses(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV1>) => process_list::list;
                view nvmlDeviceGetGraphicsRunningProcesses_v2(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list;
                view nvmlDeviceGetGraphicsRunningProcesses_v3(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::v3;
                view nvmlDeviceGetMPSComputeRunningProcesses(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV1>) => process_list::list;
                view nvmlDeviceGetMPSComputeRunningProcesses_v2(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list;
                view nvmlDeviceGetMPSComputeRunningProcesses_v3(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::v3;
                view nvmlDeviceGetRunningProcessDetailList(device: NvmlDevice, list: Out<NvmlProcessDetailList>) => process_list::details;
            }
            calls {
                nvmlInit_v2();
                nvmlDeviceGetHandleByUUID(uuid: Opaque, device: Out<NvmlDevice>);
                nvmlDeviceGetUUID(device: NvmlDevice, uuid: Opaque, length: u32);
                nvmlDeviceGetConfComputeMemSizeInfo(device: NvmlDevice, info: Opaque);
                nvmlDeviceGetMigMode(device: NvmlDevice, current: Out<u32>, pending: Out<u32>);
            }
        }
    } };
}
pub(crate) use table;

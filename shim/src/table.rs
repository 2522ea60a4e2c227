//! The hook table: the driver functions that gpulimit hooks (`hooks`), and those that it only calls
//! (`calls`).
//!
//! Two macros read the table. `driver/functions.rs` makes typed calls of the driver's functions.
//! `entry/exports.rs` makes the hooks that programs call. CONTRIBUTING.md says how to add a hook.
//!
//! A `library` names its soname and two statuses. `missing` is for a function that this driver
//! lacks. `broken` is for a hook whose handler has panicked.
//!
//! A row of `hooks` is `CLASS SYMBOL(ARGUMENTS) => HANDLER`, with options after it:
//!
//! - `CLASS` says what the hook does about memory (`Class` in `hook.rs`).
//! - `SYMBOL(ARGUMENTS)` has the types of the C header. The driver writes to `Out<T>`; gpulimit
//!   reads `In<T>`.
//! - `HANDLER` gets the call, the driver's function and all arguments, which it can change.
//! - `given (a, b)`: of the arguments, `HANDLER` gets only `a` and `b`. They cannot be changed.
//! - `as quick, first FIRST`: `FIRST` makes the call without guard, panic boundary and lock, where
//!   nothing has to be charged. Otherwise it has done nothing, and `HANDLER` gets the call. With
//!   `as quick gated`, `HANDLER` also ends calls that `FIRST` has made and could not end.
//! - `as hot, first FIRST`: `FIRST` as above. `HANDLER` gets the calls that it has not made, and
//!   ends those that it could not end. The path to `HANDLER` is compiled once more for this
//!   function. Only the handler's slow paths put cancellation off.
//! - `as gated`, `as quick gated`: the function must not be called while the process is suspended.
//!   Its calls pass the gate (`driver/gate.rs`).
//! - `as gate`: gated, and the function takes no memory. `HANDLER` gets only the driver's call, and
//!   only where the export cannot make it at once.
//! - `as patched`, `as patched gated`: tools that watch memory patch the function, as UCX does. So
//!   the export begins with instructions that can be moved (`hook/pass.rs`). Those of `as hot` and
//!   `as quick` do.
//! - `as wait`: gated, and the function waits for work on the GPU. The export calls the driver
//!   first, without guard or lock. `HANDLER` runs afterwards and gets only the `Call`.
//! - `unless CHECK: a`: if `CHECK(a)` is true, the export goes straight to the driver.
//! - `known by REGISTER a`: the function launches `a`, which x86-64 passes in `REGISTER`. If `a`
//!   was launched before, the export jumps to the driver (`hook/pass.rs`).

/// Expands the macro `$reader` with the whole hook table as its input.
macro_rules! table {
    ($reader:ident) => { $reader! {
        /// libcuda.so.1
        library cuda(
            CUDA, c"libcuda.so.1", missing = CUDA_ERROR_NOT_FOUND, broken = CUDA_ERROR_UNKNOWN
        ) {
            hooks {
                sized    cuMemAlloc(dptr: Out<DevicePtrV1>, bytesize: u32) => linear::alloc_v1, as patched, given (dptr, bytesize);
                sized    cuMemAlloc_v2(dptr: Out<DevicePtr>, bytesize: usize) => linear::alloc, as hot, first linear::alloc_at_once;
                sized    cuMemAllocPitch(dptr: Out<DevicePtrV1>, pitch: Out<u32>, width: u32, height: u32, element: u32) => linear::alloc_pitch_v1, as patched, given (dptr, pitch, width, height);
                sized    cuMemAllocPitch_v2(dptr: Out<DevicePtr>, pitch: Out<usize>, width: usize, height: usize, element: u32) => linear::alloc_pitch, as patched, given (dptr, pitch, width, height);
                sized    cuMemAllocManaged(dptr: Out<DevicePtr>, bytesize: usize, flags: u32) => managed::alloc, as patched, given (dptr, bytesize);
                sized    cuMemHostAlloc(pointer: Out<DevicePtr>, bytesize: usize, flags: u32) => managed::alloc_host, given (pointer, bytesize), unless have_memory: bytesize;
                sized    cuMemAllocHost_v2(pointer: Out<DevicePtr>, bytesize: usize) => managed::alloc_host, given (pointer, bytesize), unless have_memory: bytesize;
                sized    cuMemAllocHost(pointer: Out<DevicePtr>, bytesize: u32) => managed::alloc_host_v1, given (pointer, bytesize), unless have_memory: bytesize;
                release  cuMemFreeHost(pointer: DevicePtr) => managed::free_host, as patched, given (pointer);
                release  cuMemFree(dptr: DevicePtrV1) => linear::free_v1, as patched, given (dptr);
                release  cuMemFree_v2(dptr: DevicePtr) => linear::free, as hot, first linear::free_at_once;

                sized    cuMemCreate(handle: Out<AllocationHandle>, size: usize, prop: In<AllocationProp>, flags: u64) => vmm::create, given (handle, size, prop);
                release  cuMemRelease(handle: AllocationHandle) => vmm::release, given (handle);
                track    cuMemMap(ptr: DevicePtr, size: usize, offset: usize, handle: AllocationHandle, flags: u64) => vmm::map, as patched, given (ptr, size, offset, handle);
                release  cuMemUnmap(ptr: DevicePtr, size: usize) => vmm::unmap, as patched, given (ptr, size);
                track    cuMemRetainAllocationHandle(handle: Out<AllocationHandle>, address: Opaque) => vmm::retain, given (handle);
                track    cuMemExportToShareableHandle(shareable: Opaque, handle: AllocationHandle, kind: i32, flags: u64) => vmm::export, given (handle);
                track    cuMemImportFromShareableHandle(handle: Out<AllocationHandle>, os_handle: Opaque, kind: i32) => vmm::import, given (handle);
                track    cuMemSetAccess(ptr: DevicePtr, size: usize, desc: In<AccessDesc>, count: usize) => peer::set_access, given (ptr, size, desc, count);
                track    cuMemPoolSetAccess(pool: MemPool, map: In<AccessDesc>, count: usize) => peer::set_pool_access, given (pool, map, count);
                track    cuCtxEnablePeerAccess(peer: Context, flags: u32) => peer::enable, given ();
                track    cuMulticastCreate(handle: Out<AllocationHandle>, prop: Opaque) => vmm::create_multicast, given (handle);

                track    cuImportExternalMemory(ext_mem: Out<Opaque>, desc: Opaque) => external::import_memory, given ();
                track    cuDestroyExternalMemory(ext_mem: Opaque) => external::destroy_memory, given ();
                track    cuImportExternalSemaphore(ext_sem: Out<Opaque>, desc: Opaque) => external::import_semaphore, given ();
                track    cuDestroyExternalSemaphore(ext_sem: Opaque) => external::destroy_semaphore, given ();

                track    cuIpcGetMemHandle(handle: Opaque, dptr: DevicePtr) => ipc::get, as gated, given (dptr);
                track    cuIpcOpenMemHandle(dptr: Out<DevicePtr>, handle: IpcHandle, flags: u32) => ipc::open, given (dptr);
                track    cuIpcOpenMemHandle_v2(dptr: Out<DevicePtr>, handle: IpcHandle, flags: u32) => ipc::open, given (dptr);
                release  cuIpcCloseMemHandle(dptr: DevicePtr) => ipc::close, given (dptr);
                track    cuIpcOpenEventHandle(event: Out<Event>, handle: IpcHandle) => ipc::open_event, given ();

                sized    cuArrayCreate_v2(array: Out<Array>, descriptor: In<ArrayDescriptor>) => array::create, given (array, descriptor);
                sized    cuArray3DCreate_v2(array: Out<Array>, descriptor: In<Array3dDescriptor>) => array::create_3d, given (array, descriptor);
                release  cuArrayDestroy(array: Array) => array::destroy, given (array);
                sized    cuMipmappedArrayCreate(array: Out<Array>, descriptor: In<Array3dDescriptor>, levels: u32) => array::create_mipmapped, given (array, descriptor, levels);
                release  cuMipmappedArrayDestroy(array: Array) => array::destroy_mipmapped, given (array);

                pooled   cuMemAllocAsync(dptr: Out<DevicePtr>, bytesize: usize, stream: Stream) => pool::alloc, as quick gated, first pool::alloc_at_once;
                pooled   cuMemAllocAsync_ptsz(dptr: Out<DevicePtr>, bytesize: usize, stream: Stream) => pool::alloc, as quick gated, first pool::alloc_at_once;
                pooled   cuMemAllocFromPoolAsync(dptr: Out<DevicePtr>, bytesize: usize, pool: MemPool, stream: Stream) => pool::alloc_from, as patched gated;
                pooled   cuMemAllocFromPoolAsync_ptsz(dptr: Out<DevicePtr>, bytesize: usize, pool: MemPool, stream: Stream) => pool::alloc_from, as patched gated;
                pooled   cuMemFreeAsync(dptr: DevicePtr, stream: Stream) => pool::free, as quick, first pool::free_at_once;
                pooled   cuMemFreeAsync_ptsz(dptr: DevicePtr, stream: Stream) => pool::free, as quick, first pool::free_at_once;
                track    cuMemPoolCreate(pool: Out<MemPool>, props: In<AllocationProp>) => pool::create, given (pool, props);
                release  cuMemPoolDestroy(pool: MemPool) => pool::destroy, as gated, given (pool);
                release  cuMemPoolTrimTo(pool: MemPool, keep: usize) => pool::trim, given ();
                track    cuMemPoolExportToShareableHandle(shareable: Opaque, pool: MemPool, kind: i32, flags: u64) => pool::export, given (pool);
                track    cuMemPoolImportFromShareableHandle(pool: Out<MemPool>, shareable: Opaque, kind: i32, flags: u64) => pool::import, given (pool);
                track    cuMemPoolImportPointer(dptr: Out<DevicePtr>, pool: MemPool, data: Opaque) => pool::import_pointer, given (dptr, pool);
                track    cuMemPoolSetAttribute(pool: MemPool, attribute: i32, value: Opaque) => pool::set_attribute, given ();
                track    cuDeviceSetMemPool(device: Device, pool: MemPool) => pool::set_current, given (device, pool);
                track    cuMemGetDefaultMemPool(pool: Out<MemPool>, location: In<Location>, kind: i32) => pool::find, given (pool, location, kind);
                track    cuMemGetMemPool(pool: Out<MemPool>, location: In<Location>, kind: i32) => pool::find, given (pool, location, kind);
                track    cuMemSetMemPool(location: In<Location>, kind: i32, pool: MemPool) => pool::set_current_at, given (location, pool);
                pooled   cuStreamSynchronize(stream: Stream) => synchronize::work, as wait;
                pooled   cuStreamSynchronize_ptsz(stream: Stream) => synchronize::work, as wait;
                pooled   cuEventSynchronize(event: Event) => synchronize::work, as wait;
                pooled   cuCtxSynchronize() => synchronize::all_work, as wait;
                pooled   cuCtxSynchronize_v2(context: Context) => synchronize::all_work, as wait;

                gate     cuStreamQuery(stream: Stream) => gate::wait, as gate;
                gate     cuStreamQuery_ptsz(stream: Stream) => gate::wait, as gate;
                gate     cuEventQuery(event: Event) => gate::wait, as gate;
                gate     cuEventElapsedTime(milliseconds: Out<f32>, start: Event, end: Event) => gate::wait, as gate;
                gate     cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Event, end: Event) => gate::wait, as gate;
                gate     cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: Device) => gate::wait, as gate;
                gate     cuDeviceGetName(name: Out<u8>, length: i32, device: Device) => gate::wait, as gate;

                measured cuDevicePrimaryCtxRetain(context: Out<Context>, device: Device) => context::retain_primary, given (context, device);
                release  cuDevicePrimaryCtxRelease(device: Device) => context::release_primary, given (device);
                release  cuDevicePrimaryCtxRelease_v2(device: Device) => context::release_primary, given (device);
                release  cuDevicePrimaryCtxReset(device: Device) => context::release_primary, given (device);
                release  cuDevicePrimaryCtxReset_v2(device: Device) => context::release_primary, given (device);
                measured cuCtxCreate(context: Out<Context>, flags: u32, device: Device) => context::create, given (context, device);
                measured cuCtxCreate_v2(context: Out<Context>, flags: u32, device: Device) => context::create, given (context, device);
                measured cuCtxCreate_v3(context: Out<Context>, affinity: Opaque, count: i32, flags: u32, device: Device) => context::create, given (context, device);
                measured cuCtxCreate_v4(context: Out<Context>, params: Opaque, flags: u32, device: Device) => context::create, given (context, device);
                measured cuGLCtxCreate(context: Out<Context>, flags: u32, device: Device) => context::create, given (context, device);
                measured cuGLCtxCreate_v2(context: Out<Context>, flags: u32, device: Device) => context::create, given (context, device);
                measured cuVDPAUCtxCreate(context: Out<Context>, flags: u32, device: Device, vdp_device: u32, get_proc_address: Opaque) => context::create, given (context, device);
                measured cuVDPAUCtxCreate_v2(context: Out<Context>, flags: u32, device: Device, vdp_device: u32, get_proc_address: Opaque) => context::create, given (context, device);
                measured cuGreenCtxCreate(green: Out<Opaque>, description: Opaque, device: Device, flags: u32) => green::create, given (green, device);
                release  cuGreenCtxDestroy(green: Opaque) => green::destroy, given (green);
                measured cuGreenCtxStreamCreate(stream: Out<Stream>, green: Opaque, flags: u32, priority: i32) => green::stream, given (stream, green);
                sized    cuCtxSetLimit(limit: i32, value: usize) => context_limits::set;
                release  cuCtxDestroy(context: Context) => context::destroy, given (context);
                release  cuCtxDestroy_v2(context: Context) => context::destroy, given (context);
                release  cuCtxDetach(context: Context) => context::destroy, given (context);

                measured cuModuleLoad(module: Out<Opaque>, path: FileName) => code::module_file, given (module, path);
                measured cuModuleLoadData(module: Out<Opaque>, image: Image) => code::module, given (module, image);
                measured cuModuleLoadFatBinary(module: Out<Opaque>, image: Image) => code::module, given (module, image);
                measured cuModuleLoadDataEx(module: Out<Opaque>, image: Image, count: u32, options: Opaque, values: Opaque) => code::module, given (module, image);
                release  cuModuleUnload(module: Opaque) => code::unload, as gated, given (module);
                measured cuLibraryLoadData(library: Out<Opaque>, code: Image, jit_options: Opaque, jit_values: Opaque, jit_count: u32, options: Opaque, values: Opaque, count: u32) => code::library, given (library, code);
                measured cuLibraryLoadFromFile(library: Out<Opaque>, path: FileName, jit_options: Opaque, jit_values: Opaque, jit_count: u32, options: Opaque, values: Opaque, count: u32) => code::library_file, given (library, path);
                release  cuLibraryUnload(library: Opaque) => code::unload_library, given (library);
                measured cuLibraryGetModule(module: Out<Opaque>, library: Opaque) => code::library_module, given (module, library);
                measured cuLibraryGetGlobal(dptr: Out<DevicePtr>, bytes: Out<usize>, library: Opaque, name: Opaque) => lazy::library, as patched, given (library);
                track    cuLibraryGetKernel(kernel: Out<Opaque>, library: Opaque, name: Opaque) => code::kernel, given (kernel, library);
                track    cuLibraryEnumerateKernels(kernels: Out<Opaque>, count: u32, library: Opaque) => handles::kernels, given (kernels, count, library);
                track    cuModuleEnumerateFunctions(functions: Out<Opaque>, count: u32, module: Opaque) => handles::functions, given (functions, count, module);
                measured cuKernelGetFunction(function: Out<Opaque>, kernel: Opaque) => code::kernel_function, given (function, kernel);

                measured cuKernelSetAttribute(attribute: i32, value: i32, kernel: Opaque, device: Device) => lazy::everywhere, given (kernel, device), unless is_loaded: kernel;
                measured cuKernelSetCacheConfig(kernel: Opaque, config: i32, device: Device) => lazy::everywhere, given (kernel, device), unless is_loaded: kernel;
                measured cuKernelGetParamInfo(kernel: Opaque, index: usize, offset: Out<usize>, size: Out<usize>) => lazy::function, given (kernel), unless is_loaded: kernel;
                measured cuKernelGetParamCount(kernel: Opaque, count: Out<usize>) => lazy::function, given (kernel), unless is_loaded: kernel;
                measured cuModuleGetFunction(function: Out<Opaque>, module: Opaque, name: Opaque) => code::module_function, given (function, module);
                measured cuFuncLoad(function: Opaque) => lazy::function, given (function), unless is_loaded: function;
                measured cuFuncSetAttribute(function: Opaque, attribute: i32, value: i32) => lazy::function, given (function), unless is_loaded: function;
                measured cuFuncSetCacheConfig(function: Opaque, config: i32) => lazy::function, given (function), unless is_loaded: function;
                measured cuFuncSetSharedMemConfig(function: Opaque, config: i32) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<i32>, function: Opaque, threads: i32, shared: usize) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: Out<i32>, function: Opaque, threads: i32, shared: usize, flags: u32) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: Opaque, shared_of: Opaque, shared: usize, limit: i32) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: Opaque, shared_of: Opaque, shared: usize, limit: i32, flags: u32) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Opaque, blocks: i32, threads: i32) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: Opaque, config: Opaque) => lazy::function, given (function), unless is_loaded: function;
                measured cuOccupancyMaxActiveClusters(count: Out<i32>, function: Opaque, config: Opaque) => lazy::function, given (function), unless is_loaded: function;

                launch   cuLaunchKernel(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque, extra: Opaque) => launch::kernel, given (function, stream), known by rdi function;
                launch   cuLaunchKernel_ptsz(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque, extra: Opaque) => launch::kernel, given (function, stream), known by rdi function;
                launch   cuLaunchKernelEx(config: In<LaunchConfig>, function: Opaque, params: Opaque, extra: Opaque) => launch::kernel_ex, given (config, function), known by rsi function;
                launch   cuLaunchKernelEx_ptsz(config: In<LaunchConfig>, function: Opaque, params: Opaque, extra: Opaque) => launch::kernel_ex, given (config, function), known by rsi function;
                launch   cuLaunchCooperativeKernel(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque) => launch::kernel, given (function, stream), known by rdi function;
                launch   cuLaunchCooperativeKernel_ptsz(function: Opaque, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Stream, params: Opaque) => launch::kernel, given (function, stream), known by rdi function;
                launch   cuLaunchCooperativeKernelMultiDevice(list: In<LaunchParams>, count: u32, flags: u32) => launch::multi_device, given (list, count);
                launch   cuLaunch(function: Opaque) => launch::plain, given (function), known by rdi function;
                launch   cuLaunchGrid(function: Opaque, width: i32, height: i32) => launch::plain, given (function), known by rdi function;
                launch   cuLaunchGridAsync(function: Opaque, width: i32, height: i32, stream: Stream) => launch::kernel, given (function, stream), known by rdi function;

                measured cuStreamCreate(stream: Out<Stream>, flags: u32) => measured::stream, given (stream);
                measured cuStreamCreateWithPriority(stream: Out<Stream>, flags: u32, priority: i32) => measured::stream, given (stream);
                track    cuStreamDestroy(stream: Stream) => handles::destroy_stream, given (stream);
                track    cuStreamDestroy_v2(stream: Stream) => handles::destroy_stream, given (stream);
                track    cuStreamBeginCapture(stream: Stream) => capture::begin, given (stream);
                track    cuStreamBeginCapture_ptsz(stream: Stream) => capture::begin, given (stream);
                track    cuStreamBeginCapture_v2(stream: Stream, mode: i32) => capture::begin, given (stream);
                track    cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: i32) => capture::begin, given (stream);
                track    cuStreamBeginCaptureToGraph(stream: Stream, graph: Graph, dependencies: Opaque, edges: Opaque, count: usize, mode: i32) => capture::begin, given (stream);
                track    cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: Graph, dependencies: Opaque, edges: Opaque, count: usize, mode: i32) => capture::begin, given (stream);
                track    cuStreamBeginRecaptureToGraph(stream: Stream, mode: i32, graph: Graph, callback: Opaque, data: Opaque) => capture::begin, given (stream);
                track    cuStreamBeginRecaptureToGraph_ptsz(stream: Stream, mode: i32, graph: Graph, callback: Opaque, data: Opaque) => capture::begin, given (stream);
                track    cuStreamEndCapture(stream: Stream, graph: Out<Graph>) => capture::end, given (stream, graph);
                track    cuStreamEndCapture_ptsz(stream: Stream, graph: Out<Graph>) => capture::end, given (stream, graph);
                track    cuGraphCreate(graph: Out<Graph>, flags: u32) => handles::make_graph, given (graph);
                track    cuGraphClone(clone: Out<Graph>, original: Graph) => handles::make_graph, given (clone);
                track    cuGraphDestroy(graph: Graph) => handles::destroy_graph, given (graph);
                measured cuGraphAddKernelNode(node: Out<Node>, graph: Graph, dependencies: Opaque, count: usize, params: In<KernelNodeParamsV1>) => graph_node::kernel_v1, given (params);
                measured cuGraphAddKernelNode_v2(node: Out<Node>, graph: Graph, dependencies: Opaque, count: usize, params: In<KernelNodeParams>) => graph_node::kernel, given (params);
                measured cuGraphAddNode(node: Out<Node>, graph: Graph, dependencies: Opaque, count: usize, params: In<NodeParams>) => graph_node::add, given (node, graph, params);
                measured cuGraphAddNode_v2(node: Out<Node>, graph: Graph, dependencies: Opaque, edges: Opaque, count: usize, params: In<NodeParams>) => graph_node::add, given (node, graph, params);
                measured cuGraphAddNode_v3(node: Out<Node>, graph: Graph, dependencies: Opaque, edges: Opaque, count: usize, params: In<NodeParams>) => graph_node::add, given (node, graph, params);
                measured cuGraphKernelNodeSetParams(node: Node, params: In<KernelNodeParamsV1>) => graph_node::kernel_v1, given (params);
                measured cuGraphKernelNodeSetParams_v2(node: Node, params: In<KernelNodeParams>) => graph_node::kernel, given (params);
                measured cuGraphNodeSetParams(node: Node, params: In<NodeParams>) => graph_node::set, given (params);
                measured cuGraphNodeSetParams_v2(node: Node, params: In<NodeParams>) => graph_node::set, given (params);
                measured cuGraphInstantiate(exec: Out<GraphExec>, graph: Graph, error_node: Opaque, log: Opaque, log_size: usize) => graph::instantiate, given (exec, graph);
                measured cuGraphInstantiate_v2(exec: Out<GraphExec>, graph: Graph, error_node: Opaque, log: Opaque, log_size: usize) => graph::instantiate, given (exec, graph);
                measured cuGraphInstantiateWithFlags(exec: Out<GraphExec>, graph: Graph, flags: u64) => graph::instantiate, given (exec, graph);
                measured cuGraphInstantiateWithParams(exec: Out<GraphExec>, graph: Graph, params: In<GraphInstantiateParams>) => graph::instantiate_with_params, given (exec, graph, params);
                measured cuGraphInstantiateWithParams_ptsz(exec: Out<GraphExec>, graph: Graph, params: In<GraphInstantiateParams>) => graph::instantiate_with_params, given (exec, graph, params);

                launch   cuGraphExecUpdate(exec: GraphExec, graph: Graph, error_node: Opaque, result: Opaque) => graph_update::update, given (exec, graph);
                launch   cuGraphExecUpdate_v2(exec: GraphExec, graph: Graph, info: Opaque) => graph_update::update, given (exec, graph);
                launch   cuGraphExecKernelNodeSetParams(exec: GraphExec, node: Node, params: In<KernelNodeParamsV1>) => graph_update::set_kernel_v1, given (exec, params);
                launch   cuGraphExecKernelNodeSetParams_v2(exec: GraphExec, node: Node, params: In<KernelNodeParams>) => graph_update::set_kernel, given (exec, params);
                launch   cuGraphExecChildGraphNodeSetParams(exec: GraphExec, node: Node, child: Graph) => graph_update::update, given (exec, child);
                launch   cuGraphExecNodeSetParams(exec: GraphExec, node: Node, params: In<NodeParams>) => graph_update::set_node, given (exec, params);
                launch   cuGraphLaunch(exec: GraphExec, stream: Stream) => graph::launch, given (exec, stream), known by rdi exec;
                launch   cuGraphLaunch_ptsz(exec: GraphExec, stream: Stream) => graph::launch, given (exec, stream), known by rdi exec;
                launch   cuGraphUpload(exec: GraphExec, stream: Stream) => graph::launch, given (exec, stream), known by rdi exec;
                launch   cuGraphUpload_ptsz(exec: GraphExec, stream: Stream) => graph::launch, given (exec, stream), known by rdi exec;
                track    cuGraphExecDestroy(exec: GraphExec) => graph::destroy, given (exec);
                release  cuDeviceGraphMemTrim(device: Device) => graph::trim, given (device);

                view     cuMemGetInfo(free: Out<u32>, total: Out<u32>) => view::mem_get_info_v1, as gated, given (free, total);
                view     cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => view::mem_get_info, as gated, given (free, total);
                view     cuDeviceTotalMem(bytes: Out<u32>, device: Device) => view::device_total_mem_v1, given (bytes, device);
                view     cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) => view::device_total_mem, given (bytes, device);

                lookup   cuGetProcAddress(symbol: Opaque, pfn: Out<Opaque>, version: i32, flags: u64) => lookup::proc_address, given (pfn);
                lookup   cuGetProcAddress_v2(symbol: Opaque, pfn: Out<Opaque>, version: i32, flags: u64, status: Opaque) => lookup::proc_address, given (pfn);
            }
            calls {
                cuDeviceGetCount(count: Out<i32>);
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
                cuCheckpointProcessGetState(pid: i32, state: Out<i32>);
                cuCheckpointProcessUnlock(pid: i32, options: Opaque);
                cuKernelGetLibrary(library: Out<Opaque>, kernel: Opaque);
                cuLibraryGetKernelCount(count: Out<u32>, library: Opaque);
                cuModuleGetFunctionCount(count: Out<u32>, module: Opaque);
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
        library nvml(
            NVML, c"libnvidia-ml.so.1",
            missing = NVML_ERROR_FUNCTION_NOT_FOUND, broken = NVML_ERROR_UNKNOWN
        ) {
            hooks {
                view nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: Out<NvmlMemory>) => view::nvml_memory_info, given (device, memory);
                view nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: Out<NvmlMemoryV2>) => view::nvml_memory_info_v2, given (device, memory);

                view nvmlDeviceGetComputeRunningProcesses(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV1>) => process_list::list;
                view nvmlDeviceGetComputeRunningProcesses_v2(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list;
                view nvmlDeviceGetComputeRunningProcesses_v3(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list_v3;
                view nvmlDeviceGetGraphicsRunningProcesses(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV1>) => process_list::list;
                view nvmlDeviceGetGraphicsRunningProcesses_v2(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list;
                view nvmlDeviceGetGraphicsRunningProcesses_v3(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list_v3;
                view nvmlDeviceGetMPSComputeRunningProcesses(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV1>) => process_list::list;
                view nvmlDeviceGetMPSComputeRunningProcesses_v2(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list;
                view nvmlDeviceGetMPSComputeRunningProcesses_v3(device: NvmlDevice, count: Out<u32>, infos: Out<NvmlProcessV2>) => process_list::list_v3;
                view nvmlDeviceGetRunningProcessDetailList(device: NvmlDevice, list: Out<NvmlProcessDetailList>) => process_list::details;
            }
            calls {
                nvmlInit_v2();
                nvmlDeviceGetCount_v2(count: Out<u32>);
                nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<NvmlDevice>);
                nvmlDeviceGetHandleByUUID(uuid: Opaque, device: Out<NvmlDevice>);
                nvmlDeviceGetIndex(device: NvmlDevice, index: Out<u32>);
                nvmlDeviceGetUUID(device: NvmlDevice, uuid: Opaque, length: u32);
                nvmlDeviceGetConfComputeMemSizeInfo(device: NvmlDevice, info: Opaque);
                nvmlDeviceGetMigMode(device: NvmlDevice, current: Out<u32>, pending: Out<u32>);
            }
        }
    } };
}
pub(crate) use table;

"""Takes memory in one way: ways.py WAY CAP, with CAP in bytes.

`take` goes on until the driver refuses or three times the limit has been taken; `free` frees
everything. A way is a generator: each turn takes memory once more and yields the driver's status
and the requested bytes; when True is sent to it, it frees everything and ends. All sizes are bytes;
a status is the driver's return code (0 success, 2 out of memory).
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from ctypes import (
    CDLL,
    Structure,
    byref,
    c_byte,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
    cast,
    pointer,
)

import agent

cuda = CDLL("libcuda.so.1")
MIB = 1 << 20
ODD = 100 * MIB + 4711
"""The size of a request in most ways."""

Turns = Iterator[tuple[int, int]]
WAYS: dict[str, Callable[[], Turns]] = {}


def way(name: str) -> Callable[[Callable[[], Turns]], Callable[[], Turns]]:
    """Registers a way under its name."""

    def enter(function: Callable[[], Turns]) -> Callable[[], Turns]:
        assert name not in WAYS, name
        WAYS[name] = function
        return function

    return enter


def call(name: str, *arguments: object) -> int:
    """Calls a driver function and returns its status; a function that this driver lacks ends the
    check with its name.
    """
    return getattr(cuda, name)(*arguments)


def must(name: str, *arguments: object) -> None:
    """Makes a call that takes no memory and must succeed."""
    status = call(name, *arguments)
    if status:
        raise RuntimeError(f"{name} answered {status}")


def one_by_one(take: Callable[[], tuple[int, int, object]], give: Callable[[object], int]) -> Turns:
    """Calls `take` for a status, bytes and a handle in each turn, and finally `give` for each
    handle.
    """
    held = []
    while True:
        status, size, handle = take()
        if status == 0:
            held.append(handle)
        if (yield status, size):
            break
    for handle in reversed(held):
        status = give(handle)
        if status:
            raise RuntimeError(f"giving back answered {status}")


def context() -> c_void_p:
    """Makes the primary context current."""
    handle = c_void_p()
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", byref(handle), 0)
    must("cuCtxSetCurrent", handle)
    return handle


def stream() -> c_void_p:
    """Makes a stream that does not wait for the default one."""
    handle = c_void_p()
    must("cuStreamCreate", byref(handle), 1)
    return handle


# ---- linear memory


def linear(size: Callable[[int], int]) -> Turns:
    count = [0]

    def take() -> tuple[int, int, object]:
        count[0] += 1
        address, wanted = c_uint64(), size(count[0])
        return call("cuMemAlloc_v2", byref(address), c_size_t(wanted)), wanted, address

    return one_by_one(take, lambda address: call("cuMemFree_v2", address))


@way("alloc-large")
def alloc_large() -> Turns:
    return linear(lambda _: ODD)


@way("alloc-small")
def alloc_small() -> Turns:
    return linear(lambda at: 200_001 + at % 7 * 1000)


@way("alloc-1.1M")
def alloc_over_one() -> Turns:
    return linear(lambda _: 1_153_434)


@way("alloc-3M-4K")
def alloc_under_three() -> Turns:
    return linear(lambda _: 3 * MIB - 4096)


@way("alloc-mixed")
def alloc_mixed() -> Turns:
    return linear(lambda at: (at * 2_654_435_761 % (9 * MIB)) | 1)


@way("pitch")
def pitch() -> Turns:
    def take() -> tuple[int, int, object]:
        address, real = c_uint64(), c_size_t()
        status = call(
            "cuMemAllocPitch_v2", byref(address), byref(real), c_size_t(1032), c_size_t(50_000), 4
        )
        return status, 1032 * 50_000, address

    return one_by_one(take, lambda address: call("cuMemFree_v2", address))


# ---- arrays


class ArrayDescriptor(Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_uint),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class PlainDescriptor(Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]


FLOAT, LAYERED, CUBEMAP = 0x20, 1, 4
SPARSE, DEFERRED = 0x40, 0x80


def arrays(
    width: int, height: int, depth: int, flags: int = 0, channels: int = 4, levels: int = 0
) -> Turns:
    nominal = width * max(height, 1) * max(depth, 1) * channels * 4

    def take() -> tuple[int, int, object]:
        array, descriptor = c_void_p(), ArrayDescriptor(
            width, height, depth, FLOAT, channels, flags
        )
        if levels:
            return (
                call("cuMipmappedArrayCreate", byref(array), byref(descriptor), levels),
                nominal,
                array,
            )
        return call("cuArray3DCreate_v2", byref(array), byref(descriptor)), nominal, array

    name = "cuMipmappedArrayDestroy" if levels else "cuArrayDestroy"
    return one_by_one(take, lambda array: call(name, array))


@way("array-1d")
def array_1d() -> Turns:
    return arrays(65_536, 0, 0)


@way("array-2d")
def array_2d() -> Turns:
    def take() -> tuple[int, int, object]:
        array = c_void_p()
        status = call(
            "cuArrayCreate_v2", byref(array), byref(PlainDescriptor(2000, 3000, FLOAT, 4))
        )
        return status, 2000 * 3000 * 16, array

    return one_by_one(take, lambda array: call("cuArrayDestroy", array))


@way("array-3d")
def array_3d() -> Turns:
    return arrays(300, 200, 100)


@way("array-layered")
def array_layered() -> Turns:
    return arrays(1000, 1000, 7, LAYERED)


@way("array-cube")
def array_cube() -> Turns:
    return arrays(900, 900, 6, CUBEMAP)


@way("array-small")
def array_small() -> Turns:
    return arrays(150, 150, 0)


@way("mipmapped")
def mipmapped() -> Turns:
    return arrays(2048, 2048, 0, levels=8)


# ---- virtual memory


class Property(Structure):
    """CUmemAllocationProp: pinned memory on GPU 0."""

    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", c_int),
        ("id", c_int),
        ("rest", c_byte * 16),
    ]


def pinned(usage: int = 0) -> Property:
    prop = Property(1, 0, 1, 0)
    struct.pack_into("H", prop.rest, 10, usage)
    return prop


GRANULE = 2 * MIB
PIECE = 96 * MIB


def create(size: int, usage: int = 0) -> tuple[int, c_uint64]:
    handle = c_uint64()
    return (
        call("cuMemCreate", byref(handle), c_size_t(size), byref(pinned(usage)), c_uint64(0)),
        handle,
    )


def reserve(size: int) -> c_uint64:
    address = c_uint64()
    must(
        "cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)
    )
    return address


def virtual(mappings: int, early: bool = False, retain: bool = False) -> Turns:
    def take() -> tuple[int, int, object]:
        status, handle = create(PIECE)
        if status:
            return status, PIECE, None
        addresses = [reserve(PIECE) for _ in range(mappings)]
        for address in addresses:
            must("cuMemMap", address, c_size_t(PIECE), c_size_t(0), handle, c_uint64(0))
        if retain:
            again = c_uint64()
            must("cuMemRetainAllocationHandle", byref(again), c_void_p(addresses[0].value))
        if early:
            must("cuMemRelease", handle)
        return 0, PIECE, (handle, addresses)

    def give(held: object) -> int:
        handle, addresses = held
        for address in addresses:
            must("cuMemUnmap", address, c_size_t(PIECE))
            must("cuMemAddressFree", address, c_size_t(PIECE))
        for _ in range((not early) + retain):
            must("cuMemRelease", handle)
        return 0

    return one_by_one(take, give)


@way("vmm")
def vmm() -> Turns:
    return virtual(1)


@way("vmm-early-release")
def vmm_early() -> Turns:
    return virtual(1, early=True)


@way("vmm-retained")
def vmm_retained() -> Turns:
    return virtual(1, early=True, retain=True)


@way("vmm-mapped-twice")
def vmm_twice() -> Turns:
    return virtual(2)


class MapInfo(Structure):
    """CUarrayMapInfo: binds memory to the tail or to a rectangle of a sparse array."""

    _fields_ = [("bytes", c_byte * 96)]


TILE_POOL = 1


def backed(flag: int) -> Turns:
    """Makes arrays without memory, and maps memory into them. The memory lives as long as its
    handle, mapped or not.
    """
    width = height = 2048
    size = width * height * 16

    def take() -> tuple[int, int, object]:
        array = c_void_p()
        must(
            "cuArray3DCreate_v2",
            byref(array),
            byref(ArrayDescriptor(width, height, 0, FLOAT, 4, flag)),
        )
        status, handle = create(size, TILE_POOL)
        if status:
            must("cuArrayDestroy", array)
            return status, size, None
        info = MapInfo()
        # The array; the whole level 0 of it; a generic handle mapped from offset 0 on device 0.
        struct.pack_into("IxxxxQ", info.bytes, 0, 0, array.value)
        struct.pack_into("IxxxxIIIIIIII", info.bytes, 16, 0, 0, 0, 0, 0, 0, width, height, 1)
        struct.pack_into("IIQQII", info.bytes, 56, 1, 0, handle.value, 0, 1, 0)
        must("cuMemMapArrayAsync", byref(info), 1, None)
        must("cuCtxSynchronize")
        return 0, size, (array, handle)

    def give(held: object) -> int:
        array, handle = held
        must("cuArrayDestroy", array)
        return call("cuMemRelease", handle)

    return one_by_one(take, give)


@way("array-sparse")
def array_sparse() -> Turns:
    return backed(SPARSE)


@way("array-deferred")
def array_deferred() -> Turns:
    return backed(DEFERRED)


# ---- pools


def pool_property() -> object:
    """Returns CUmemPoolProps: pinned memory on GPU 0."""
    prop = (c_byte * 88)()
    struct.pack_into("iiii", prop, 0, 1, 0, 1, 0)
    return prop


def keep(pool: c_void_p) -> None:
    """Makes the pool keep its reserve."""
    must("cuMemPoolSetAttribute", pool, 4, byref(c_uint64(2**64 - 1)))


def stream_ordered(name: str, size: int, explicit: bool = False, kept: bool = False) -> Turns:
    queue, pool = stream(), c_void_p()
    if explicit:
        must("cuMemPoolCreate", byref(pool), pool_property())
    else:
        must("cuDeviceGetDefaultMemPool", byref(pool), 0)
    if kept:
        keep(pool)

    def take() -> tuple[int, int, object]:
        address = c_uint64()
        if explicit:
            return call(name, byref(address), c_size_t(size), pool, queue), size, address
        return call(name, byref(address), c_size_t(size), queue), size, address

    yield from one_by_one(take, lambda address: call("cuMemFreeAsync", address, queue))
    must("cuStreamSynchronize", queue)
    must("cuMemPoolTrimTo", pool, c_size_t(0))
    if explicit:
        must("cuMemPoolDestroy", pool)


@way("async")
def async_default() -> Turns:
    return stream_ordered("cuMemAllocAsync", ODD)


@way("async-small")
def async_small() -> Turns:
    return stream_ordered("cuMemAllocAsync", 1_000_001)


@way("async-own-thread")
def async_twin() -> Turns:
    return stream_ordered("cuMemAllocAsync_ptsz", ODD)


@way("async-pool")
def async_pool() -> Turns:
    return stream_ordered("cuMemAllocFromPoolAsync", 33 * MIB, explicit=True)


@way("async-kept-pool")
def async_kept() -> Turns:
    return stream_ordered("cuMemAllocAsync", 200 * MIB, kept=True)


@way("pool-then-linear")
def pool_then_linear() -> Turns:
    """Lets a pool keep unused memory, then takes as much memory in another way."""
    queue, pool, held = stream(), c_void_p(), []
    must("cuDeviceGetDefaultMemPool", byref(pool), 0)
    keep(pool)
    for _ in range(20):
        address = c_uint64()
        must("cuMemAllocAsync", byref(address), c_size_t(128 * MIB), queue)
        held.append(address)
    for address in held:
        must("cuMemFreeAsync", address, queue)
    must("cuStreamSynchronize", queue)
    yield from linear(lambda _: ODD)
    must("cuMemPoolTrimTo", pool, c_size_t(0))


@way("freed-async")
def freed_async() -> Turns:
    """Frees linear memory in a stream, which the driver keeps until a synchronise call, then takes
    as much memory in another way.
    """
    queue, held = stream(), []
    for _ in range(20):
        address = c_uint64()
        must("cuMemAlloc_v2", byref(address), c_size_t(128 * MIB))
        held.append(address)
    for address in held:
        must("cuMemFreeAsync", address, queue)
    yield from linear(lambda _: ODD)
    must("cuStreamSynchronize", queue)


# ---- graphs


class MemAllocNode(Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = [
        ("pool", c_byte * 88),
        ("access", c_void_p),
        ("count", c_size_t),
        ("bytes", c_size_t),
        ("address", c_uint64),
    ]


def allocation_node(graph: c_void_p, size: int) -> int:
    """Adds a node that allocates on GPU 0; returns the address that the allocation will have."""
    node, parameters = c_void_p(), MemAllocNode()
    struct.pack_into("iiii", parameters.pool, 0, 1, 0, 1, 0)
    parameters.bytes = size
    must("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(parameters))
    return parameters.address


def graphs(
    build: Callable[[c_void_p, int], list[int]], start: str = "cuGraphLaunch", flags: int = 0
) -> Turns:
    """Makes a new graph in each turn, which leaves its allocations behind when it is launched."""
    queue, size = stream(), ODD

    def take() -> tuple[int, int, object]:
        graph, ready = c_void_p(), c_void_p()
        must("cuGraphCreate", byref(graph), 0)
        addresses = build(graph, size)
        status = call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(flags))
        if status == 0:
            status = call(start, ready, queue)
            must("cuStreamSynchronize", queue)
        if status == 0 and start == "cuGraphUpload":
            addresses = []
        return status, size * max(1, len(addresses)), (graph, ready, addresses)

    def give(held: object) -> int:
        graph, ready, addresses = held
        for address in addresses:
            must("cuMemFreeAsync", c_uint64(address), queue)
        must("cuStreamSynchronize", queue)
        must("cuGraphExecDestroy", ready)
        return call("cuGraphDestroy", graph)

    yield from one_by_one(take, give)
    must("cuDeviceGraphMemTrim", 0)


@way("graph-node")
def graph_node() -> Turns:
    return graphs(lambda graph, size: [allocation_node(graph, size)])


@way("graph-two-nodes")
def graph_two_nodes() -> Turns:
    return graphs(lambda graph, size: [allocation_node(graph, size), allocation_node(graph, size)])


@way("graph-auto-free")
def graph_auto_free() -> Turns:
    return graphs(lambda graph, size: [allocation_node(graph, size)], flags=1)


@way("graph-captured")
def graph_captured() -> Turns:
    queue = stream()

    def take() -> tuple[int, int, object]:
        graph, ready, address = c_void_p(), c_void_p(), c_uint64()
        must("cuStreamBeginCapture_v2", queue, 2)
        captured = call("cuMemAllocAsync", byref(address), c_size_t(ODD), queue)
        must("cuStreamEndCapture", queue, byref(graph))
        status = captured or call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
        status = status or call("cuGraphLaunch", ready, queue)
        must("cuStreamSynchronize", queue)
        return status, ODD, (graph, ready, address)

    def give(held: object) -> int:
        graph, ready, address = held
        must("cuMemFree_v2", address)
        must("cuGraphExecDestroy", ready)
        return call("cuGraphDestroy", graph)

    yield from one_by_one(take, give)
    must("cuDeviceGraphMemTrim", 0)


@way("graph-one-launch")
def graph_one_launch() -> Turns:
    """Launches a graph that needs more than there is, twice, which shows what a failed launch
    leaves behind.
    """
    queue, graph, ready = stream(), c_void_p(), c_void_p()
    must("cuGraphCreate", byref(graph), 0)
    for _ in range(6):
        allocation_node(graph, 1000 * MIB)
    must("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
    while True:
        status = call("cuGraphLaunch", ready, queue)
        must("cuStreamSynchronize", queue)
        if (yield status, 6000 * MIB):
            break
    must("cuGraphExecDestroy", ready)
    must("cuGraphDestroy", graph)
    must("cuDeviceGraphMemTrim", 0)


# ---- contexts, limits, kernels


@way("contexts")
def contexts() -> Turns:
    def take() -> tuple[int, int, object]:
        handle = c_void_p()
        status = call("cuCtxCreate_v2", byref(handle), 0, 0)
        return status, 500 * MIB, handle

    return one_by_one(take, lambda handle: call("cuCtxDestroy_v2", handle))


def limits(limit: int, first: int, step: int, settle: Callable[[], int] | None = None) -> Turns:
    """Raises a limit of the context step by step."""
    before, value = c_size_t(), first
    must("cuCtxGetLimit", byref(before), limit)
    while True:
        status = call("cuCtxSetLimit", limit, c_size_t(value)) or (settle() if settle else 0)
        if (yield status, 264 * MIB if limit == 0 else step):
            break
        value += step
    must("cuCtxSetLimit", limit, before)


@way("stack-limit")
def stack_limit() -> Turns:
    return limits(0, 2048, 1024)


KERNEL = """.version 6.4
.target sm_70
.address_size 64
{declarations}
.visible .entry k(.param .u64 out) {{
{body}
ret; }}
"""

LOCAL = """.local .align 16 .b8 buffer[{size}];
.reg .b64 %l<9>; .reg .b32 %i<9>; .reg .pred p;
ld.param.u64 %l1, [out]; cvt.u32.u64 %i1, %l1; and.b32 %i2, %i1, 12; cvt.u64.u32 %l2, %i2;
mov.u64 %l3, buffer; add.u64 %l4, %l3, %l2;
st.local.u32 [%l4], %i1; st.local.u32 [%l4+{last}], %i1; ld.local.u32 %i3, [%l3+{middle}];
setp.eq.u32 p, %i3, 77; @!p bra done;
cvta.to.global.u64 %l5, %l1; st.global.u32 [%l5], %i3; done:"""


def module(declarations: str, body: str) -> tuple[int, c_void_p]:
    handle = c_void_p()
    return (
        call(
            "cuModuleLoadData",
            byref(handle),
            KERNEL.format(declarations=declarations, body=body).encode() + b"\0",
        ),
        handle,
    )


def launch(code: c_void_p, queue: c_void_p | None = None) -> int:
    """Runs one thread of the module's kernel."""
    function, argument = c_void_p(), c_uint64(0)
    must("cuModuleGetFunction", byref(function), code, b"k")
    parameters = (c_void_p * 1)(cast(pointer(argument), c_void_p))
    status = call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, queue, parameters, None)
    must("cuCtxSynchronize")
    return status


@way("local-memory")
def local_memory() -> Turns:
    """Launches kernels that need ever more local memory."""
    size, held = 4096, []
    while True:
        status, code = module("", LOCAL.format(size=size, last=size - 64, middle=size // 2))
        if status == 0:
            held.append(code)
            status = launch(code)
        if (yield status, 1024 * 132 * 2048):
            break
        size += 1024
    for code in held:
        must("cuModuleUnload", code)


@way("local-memory-big")
def local_memory_at_once() -> Turns:
    """Launches one kernel that needs far more local memory than there is."""
    status, code = module("", LOCAL.format(size=65_536, last=65_536 - 64, middle=32_768))
    while True:
        if (yield status or launch(code), 16_632 * MIB):
            break
    must("cuModuleUnload", code)


@way("device-heap")
def device_heap() -> Turns:
    """Takes the heap of device malloc, which exists once a kernel that uses it is launched."""
    malloc = ".extern .func (.param .b64 result) malloc (.param .b64 size);"
    body = (
        "{ .reg .b64 %l<3>; .param .b64 size; st.param.b64 [size], 100; .param .b64 result;"
        " call.uni (result), malloc, (size); ld.param.b64 %l1, [result]; }"
    )
    size, held = 3000 * MIB, []
    while True:
        # Each context has its own heap and limit.
        handle = c_void_p()
        status = call("cuCtxCreate_v2", byref(handle), 0, 0)
        if status == 0:
            held.append(handle)
            status = call("cuCtxSetLimit", 2, c_size_t(size))
        if status == 0:
            status, code = module(malloc, body)
        if status == 0:
            status = launch(code)
        if (yield status, size):
            break
    for handle in held:
        must("cuCtxDestroy_v2", handle)


# ---- code


@way("module-variables")
def module_variables() -> Turns:
    size = 300 * MIB

    def take() -> tuple[int, int, object]:
        status, code = module(f".visible .global .align 16 .b8 big[{size}];", "")
        return status, size, code

    return one_by_one(take, lambda code: call("cuModuleUnload", code))


def libraries(load: Callable[[c_void_p], int], per_library: int = 1) -> Turns:
    """Loads libraries with a large variable in `per_library` contexts; `load` makes the first call
    that needs them.
    """
    size = 300 * MIB
    image = (
        KERNEL.format(declarations=f".visible .global .align 16 .b8 big[{size}];", body="").encode()
        + b"\0"
    )

    def take() -> tuple[int, int, object]:
        library = c_void_p()
        status = call("cuLibraryLoadData", byref(library), image, None, None, 0, None, None, 0)
        if status == 0:
            status = load(library)
            if status:
                call("cuLibraryUnload", library)
        return status, size * per_library, library

    return one_by_one(take, lambda library: call("cuLibraryUnload", library))


def kernel_of(library: c_void_p) -> c_void_p:
    """Returns the library's kernel, which does not load the library."""
    kernel = c_void_p()
    must("cuLibraryGetKernel", byref(kernel), library, b"k")
    return kernel


@way("library-variables")
def library_variables() -> Turns:
    address, found = c_uint64(), c_size_t()
    return libraries(
        lambda library: call("cuLibraryGetGlobal", byref(address), byref(found), library, b"big")
    )


@way("library-occupancy")
def library_occupancy() -> Turns:
    blocks = c_int()
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    return libraries(lambda library: call(name, byref(blocks), kernel_of(library), 32, c_size_t(0)))


@way("library-node")
def library_node() -> Turns:
    graph, node = c_void_p(), c_void_p()
    must("cuGraphCreate", byref(graph), 0)

    def load(library: c_void_p) -> int:
        parameter = c_uint64(0)
        values = (c_void_p * 1)(cast(pointer(parameter), c_void_p))
        # CUDA_KERNEL_NODE_PARAMS_v2: no function, grid and block, no shared memory, the parameters,
        # the kernel.
        sizes = (
            0,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            cast(values, c_void_p).value,
            0,
            kernel_of(library).value,
            0,
        )
        params = struct.pack("QIIIIIIIxxxxQQQQ", *sizes)
        return call("cuGraphAddKernelNode_v2", byref(node), graph, None, c_size_t(0), params)

    yield from libraries(load)
    must("cuGraphDestroy", graph)


@way("library-everywhere")
def library_everywhere() -> Turns:
    """Setting an attribute of a kernel loads its library in all contexts."""
    other = c_void_p()
    must("cuCtxCreate_v2", byref(other), 0, 0)
    yield from libraries(
        lambda library: call("cuKernelSetAttribute", 8, 1024, kernel_of(library), 0), 2
    )
    must("cuCtxDestroy_v2", other)


@way("streams")
def streams() -> Turns:
    def take() -> tuple[int, int, object]:
        handle = c_void_p()
        return call("cuStreamCreate", byref(handle), 1), MIB // 2, handle

    return one_by_one(take, lambda handle: call("cuStreamDestroy_v2", handle))


# ---- host memory, which is not limited


@way("host")
def host() -> Turns:
    def take() -> tuple[int, int, object]:
        address = c_void_p()
        return call("cuMemHostAlloc", byref(address), c_size_t(256 * MIB), 0), 256 * MIB, address

    return one_by_one(take, lambda address: call("cuMemFreeHost", address))


# ---- the agent


class Taking:
    """A way to take memory, in its turns."""

    def __init__(self, name: str, cap: int) -> None:
        self._turns, self._cap, self._name = None, cap, name

    def start(self) -> dict:
        context()
        return {"pid": os.getpid()}

    def take(self) -> dict:
        self._turns = WAYS[self._name]()
        taken = times = 0
        while taken < 3 * self._cap:
            status, size = next(self._turns)
            if status:
                return {"status": status, "taken": taken, "times": times, **self.info()}
            taken, times = taken + size, times + 1
        return {"status": 0, "taken": taken, "times": times, **self.info()}

    def again(self) -> dict:
        """Tries once more after a refusal."""
        assert self._turns
        return {"status": next(self._turns)[0]}

    def free(self) -> dict:
        assert self._turns
        try:
            self._turns.send(True)
        except StopIteration:
            pass
        return self.info()

    @staticmethod
    def info() -> dict:
        left, total = c_size_t(), c_size_t()
        status = cuda.cuMemGetInfo_v2(byref(left), byref(total))
        return {"info": status, "free": left.value, "total": total.value}


if __name__ == "__main__":
    taking = Taking(sys.argv[1], int(sys.argv[2]))
    agent.serve({
        "start": taking.start,
        "take": taking.take,
        "again": taking.again,
        "free": taking.free,
        "info": taking.info,
    })

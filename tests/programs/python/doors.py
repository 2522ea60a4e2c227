"""Takes memory of every kind through ctypes: doors.py DOOR [FILE].

Prints each call and its answer; figures are bytes.
"""

import os
import struct
import sys
from ctypes import (
    CDLL,
    CFUNCTYPE,
    RTLD_GLOBAL,
    addressof,
    c_byte,
    c_char_p,
    c_int,
    c_size_t,
    c_uint64,
    c_void_p,
)

MIB = 1 << 20
door, file = (sys.argv[1:] + [""])[:2]
opened = {
    "soname": lambda: CDLL("libcuda.so.1"),
    "plain": lambda: CDLL("libcuda.so"),
    "file": lambda: CDLL(file),
    "global": lambda: CDLL("libcuda.so.1", mode=RTLD_GLOBAL),
    "program": lambda: CDLL("libcuda.so.1", mode=RTLD_GLOBAL) and CDLL(None),
    "deepbind": lambda: CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_DEEPBIND),
    "helper": lambda: CDLL(file),
}[door]()


def function(name: str, count: int) -> object:
    """Returns the function of this name behind the door, with this many arguments."""
    kind = CFUNCTYPE(c_int, *[c_size_t] * count)
    if door == "helper":
        # The library is made at run time and linked against the driver, and returns the addresses
        # to which its names are bound.
        opened.linked.restype, opened.linked.argtypes = c_void_p, [c_char_p]
        return kind(opened.linked(name.encode()))
    return kind((name, opened))


def call(name: str, *arguments: object) -> int:
    """Calls a function with numbers, and with the addresses of all other arguments."""
    plain = [
        argument if isinstance(argument, int) else addressof(argument) for argument in arguments
    ]
    return function(name, len(plain))(*plain)


def say(what: str, *answer: int) -> None:
    print(what, *answer, flush=True)


def view(what: str) -> None:
    left, total, device = c_size_t(), c_size_t(), c_size_t()
    status = [call("cuMemGetInfo_v2", left, total), call("cuDeviceTotalMem_v2", device, 0)]
    say(what, *status, left.value, total.value, device.value)


def place(size: int) -> object:
    """Returns CUmemAllocationProp or CUmemPoolProps: pinned memory on GPU 0."""
    prop = (c_byte * size)()
    struct.pack_into("iiii", prop, 0, 1, 0, 1, 0)
    return prop


context, address, pool, graph, ready = c_void_p(), c_uint64(), c_void_p(), c_void_p(), c_void_p()
say(
    "start",
    call("cuInit", 0),
    call("cuDevicePrimaryCtxRetain", context, 0),
    call("cuCtxSetCurrent", context.value),
)
view("view")

say("alloc", call("cuMemAlloc_v2", address, 600 * MIB), call("cuMemAlloc_v2", address, 300 * MIB))
view("allocated")
say("free", call("cuMemFree_v2", address.value))
view("freed")
pitch = c_size_t()
say("pitch", call("cuMemAllocPitch_v2", address, pitch, 1 << 20, 600, 4))
say("managed", call("cuMemAllocManaged", address, 600 * MIB, 1))

say(
    "vmm",
    call("cuMemCreate", address, 600 * MIB, place(32), 0),
    call("cuMemCreate", address, 300 * MIB, place(32), 0),
)
view("created")
say("release", call("cuMemRelease", address.value))
view("released")

descriptor = (c_byte * 40)()
struct.pack_into("QQQIII", descriptor, 0, 8192, 8192, 0, 0x20, 4, 0)
say(
    "array",
    call("cuArray3DCreate_v2", address, descriptor),
    call("cuMipmappedArrayCreate", address, descriptor, 3),
)

say(
    "async",
    call("cuMemAllocAsync", address, 600 * MIB, 0),
    call("cuMemAllocAsync", address, 100 * MIB, 0),
)
view("reserved")
say("free async", call("cuMemFreeAsync", address.value, 0), call("cuStreamSynchronize", 0))
say(
    "pool",
    call("cuMemPoolCreate", pool, place(88)),
    call("cuMemAllocFromPoolAsync", address, 600 * MIB, pool.value, 0),
)
say("pool gone", call("cuMemPoolDestroy", pool.value))
view("synchronised")

node, parameters = c_void_p(), (c_byte * 120)()
struct.pack_into("iiii", parameters, 0, 1, 0, 1, 0)
struct.pack_into("Q", parameters, 104, 600 * MIB)
say(
    "graph",
    call("cuGraphCreate", graph, 0),
    call("cuGraphAddMemAllocNode", node, graph.value, 0, 0, parameters),
)
say(
    "launch",
    call("cuGraphInstantiateWithFlags", ready, graph.value, 0),
    call("cuGraphLaunch", ready.value, 0),
)
say("context", call("cuCtxCreate_v2", context, 0, 0))

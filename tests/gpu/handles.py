"""Calls every hooked function with wrong handles, each call in its own process.

Usage: handles.py [OPTIONS]. A case is a function, one of its handles (an argument, or a field of a
structure) and what is wrong with that handle. The cases follow from `signatures.txt`, which
`UPDATE=1 cargo test --test tidy` writes from the hook table: a new hook gets its cases without a
change here, unless its arguments have a type or a name that this file does not know yet. Everything
else about a call is right, and the case `valid` has no wrong handle at all.

The outcome of a case is the status of the call and of some calls after it, the signal that ended
the process, or `hang`. The main process does not start the driver, so that every case begins with a
fresh one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from ctypes import (
    CDLL,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_uint64,
    c_void_p,
    create_string_buffer,
)
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
PTX = b""".version 6.4
.target sm_70
.address_size 64
.visible .global .align 16 .b8 variable[4194304];
.visible .entry k(.param .u64 out) { ret; }
\0"""
PATIENCE = 30.0
"""The time after which a call counts as hanging, in seconds."""

OUT_OF_MEMORY = 2

# ---- the driver


class Driver:
    """libcuda in this process, with a context on GPU 0 and the objects that a case needs."""

    def __init__(self) -> None:
        self.cuda = CDLL("libcuda.so.1")
        self.kept: list[object] = []
        self.must("cuInit", 0)
        context = c_void_p()
        self.must("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.must("cuCtxSetCurrent", context)
        self.primary = context.value
        self.second: int | None = None

    def call(self, name: str, *arguments: object) -> int:
        return getattr(self.cuda, name)(*arguments)

    def patiently(self, name: str, *arguments: object) -> int:
        """Makes a call, and repeats it while memory is short: processes of other cases may not have
        given back theirs yet.
        """
        status = self.call(name, *arguments)
        until = time.monotonic() + PATIENCE / 2
        while status == OUT_OF_MEMORY and time.monotonic() < until:
            time.sleep(0.05)
            status = self.call(name, *arguments)
        return status

    def must(self, name: str, *arguments: object) -> None:
        """Makes a call that prepares a case and must succeed."""
        status = self.patiently(name, *arguments)
        if status:
            raise RuntimeError(f"{name} answered {status}")

    def out(self, name: str, *arguments: object) -> int:
        """Returns the value that a call writes to its first argument."""
        value = c_uint64()
        self.must(name, byref(value), *arguments)
        return value.value

    def keep(self, thing: object) -> int:
        """Returns the address of an object, which is kept as long as the process lives."""
        self.kept.append(thing)
        return ctypes.addressof(thing)

    def block(self, *words: tuple[str, object], size: int = 512) -> int:
        """Returns the address of a structure with these words, each a format and a value, followed
        by zeros.
        """
        data = struct.pack("<" + "".join(form for form, _ in words), *(value for _, value in words))
        return self.keep(create_string_buffer(data, max(size, len(data))))

    def begin_second(self) -> None:
        """Makes another context current, on another GPU if there is one."""
        if self.second is None:
            count = c_int()
            self.must("cuDeviceGetCount", byref(count))
            self.second = self.out("cuCtxCreate_v2", 0, count.value - 1)
        else:
            self.must("cuCtxSetCurrent", c_void_p(self.second))

    def end_second(self) -> None:
        """Makes the first context current again."""
        self.must("cuCtxSetCurrent", c_void_p(self.primary))


# ---- handles

MAKERS: dict[str, Callable[[Driver], int]] = {}
ENDERS: dict[str, Callable[[Driver, int], object]] = {}


def kind(name: str, end: Callable[[Driver, int], object]) -> Callable:
    """Registers how a kind of handle is made and destroyed."""

    def enter(make: Callable[[Driver], int]) -> Callable[[Driver], int]:
        MAKERS[name], ENDERS[name] = make, end
        return make

    return enter


@kind("context", lambda driver, it: driver.must("cuCtxDestroy_v2", c_void_p(it)))
def context(driver: Driver) -> int:
    made = driver.out("cuCtxCreate_v2", 0, 0)
    driver.must("cuCtxPopCurrent_v2", byref(c_uint64()))
    driver.must("cuCtxSetCurrent", c_void_p(driver.primary))
    return made


@kind("stream", lambda driver, it: driver.must("cuStreamDestroy_v2", c_void_p(it)))
def stream(driver: Driver) -> int:
    return driver.out("cuStreamCreate", 1)


@kind("event", lambda driver, it: driver.must("cuEventDestroy_v2", c_void_p(it)))
def event(driver: Driver) -> int:
    made = driver.out("cuEventCreate", 0)
    # Elapsed times need recorded events.
    driver.must("cuEventRecord", c_void_p(made), c_void_p(0))
    driver.must("cuEventSynchronize", c_void_p(made))
    return made


@kind("pool", lambda driver, it: driver.must("cuMemPoolDestroy", c_void_p(it)))
def pool(driver: Driver) -> int:
    return driver.out(
        "cuMemPoolCreate", c_void_p(driver.block(("i", 1), ("i", 0), ("i", 1), ("i", 0)))
    )


@kind("pointer", lambda driver, it: driver.must("cuMemFree_v2", c_uint64(it)))
def pointer(driver: Driver) -> int:
    return driver.out("cuMemAlloc_v2", c_size_t(4 * MIB))


@kind("pool pointer", lambda driver, it: driver.must("cuMemFree_v2", c_uint64(it)))
def pool_pointer(driver: Driver) -> int:
    return driver.out("cuMemAllocAsync", c_size_t(4 * MIB), None)


@kind("memory", lambda driver, it: driver.must("cuMemRelease", c_uint64(it)))
def memory(driver: Driver) -> int:
    return driver.out("cuMemCreate", c_size_t(2 * MIB), c_void_p(properties(driver)), c_uint64(0))


def properties(driver: Driver) -> int:
    """Returns a `CUmemAllocationProp` for exportable memory on GPU 0."""
    return driver.block(("i", 1), ("i", 1), ("i", 1), ("i", 0))


@kind("mapping", lambda driver, it: driver.must("cuMemUnmap", c_uint64(it), c_size_t(2 * MIB)))
def mapping(driver: Driver) -> int:
    address = reservation(driver)
    driver.must(
        "cuMemMap",
        c_uint64(address),
        c_size_t(2 * MIB),
        c_size_t(0),
        c_uint64(memory(driver)),
        c_uint64(0),
    )
    return address


@kind(
    "reservation",
    lambda driver, it: driver.must("cuMemAddressFree", c_uint64(it), c_size_t(2 * MIB)),
)
def reservation(driver: Driver) -> int:
    return driver.out(
        "cuMemAddressReserve", c_size_t(2 * MIB), c_size_t(0), c_uint64(0), c_uint64(0)
    )


@kind("array", lambda driver, it: driver.must("cuArrayDestroy", c_void_p(it)))
def array(driver: Driver) -> int:
    return driver.out("cuArray3DCreate_v2", c_void_p(shape(driver)))


@kind("mipmap", lambda driver, it: driver.must("cuMipmappedArrayDestroy", c_void_p(it)))
def mipmap(driver: Driver) -> int:
    return driver.out("cuMipmappedArrayCreate", c_void_p(shape(driver)), 2)


def shape(driver: Driver) -> int:
    """Returns a `CUDA_ARRAY3D_DESCRIPTOR` of 1024 x 1024 floats."""
    return driver.block(
        ("Q", 1024), ("Q", 1024), ("Q", 0), ("I", 0x20), ("I", 1), ("I", 0), ("I", 0)
    )


@kind("module", lambda driver, it: driver.must("cuModuleUnload", c_void_p(it)))
def module(driver: Driver) -> int:
    return driver.out("cuModuleLoadData", c_char_p(PTX))


@kind("function", lambda driver, it: driver.must("cuModuleUnload", c_void_p(driver.module)))
def function(driver: Driver) -> int:
    driver.module = module(driver)
    return driver.out("cuModuleGetFunction", c_void_p(driver.module), b"k")


@kind("library", lambda driver, it: driver.must("cuLibraryUnload", c_void_p(it)))
def library(driver: Driver) -> int:
    return driver.out("cuLibraryLoadData", c_char_p(PTX), None, None, 0, None, None, 0)


@kind("kernel", lambda driver, it: driver.must("cuLibraryUnload", c_void_p(driver.library)))
def kernel(driver: Driver) -> int:
    driver.library = library(driver)
    return driver.out("cuLibraryGetKernel", c_void_p(driver.library), b"k")


@kind("graph", lambda driver, it: driver.must("cuGraphDestroy", c_void_p(it)))
def graph(driver: Driver) -> int:
    """Makes a graph with a kernel node, which stays in `driver.node`."""
    made = driver.out("cuGraphCreate", 0)
    code = function(driver)
    driver.node = driver.out(
        "cuGraphAddKernelNode_v2",
        c_void_p(made),
        None,
        c_size_t(0),
        c_void_p(kernel_node(driver, code)),
    )
    driver.graph = made
    return made


@kind("node", lambda driver, it: driver.must("cuGraphDestroy", c_void_p(driver.graph)))
def node(driver: Driver) -> int:
    graph(driver)
    return driver.node


@kind("child node", lambda driver, it: driver.must("cuGraphDestroy", c_void_p(driver.graph)))
def child_node(driver: Driver) -> int:
    child = graph(driver)
    outer = driver.out("cuGraphCreate", 0)
    driver.node = driver.out(
        "cuGraphAddChildGraphNode", c_void_p(outer), None, c_size_t(0), c_void_p(child)
    )
    driver.graph = outer
    return driver.node


@kind("exec", lambda driver, it: driver.must("cuGraphExecDestroy", c_void_p(it)))
def graph_exec(driver: Driver) -> int:
    return driver.out("cuGraphInstantiateWithFlags", c_void_p(graph(driver)), c_uint64(0))


@kind("exec of child", lambda driver, it: driver.must("cuGraphExecDestroy", c_void_p(it)))
def exec_of_child(driver: Driver) -> int:
    child_node(driver)
    return driver.out("cuGraphInstantiateWithFlags", c_void_p(driver.graph), c_uint64(0))


@kind("green", lambda driver, it: driver.must("cuGreenCtxDestroy", c_void_p(it)))
def green(driver: Driver) -> int:
    return driver.out("cuGreenCtxCreate", c_void_p(description(driver)), 0, 1)


@kind("description", lambda driver, it: None)
def description(driver: Driver) -> int:
    """Makes a descriptor of all multiprocessors of GPU 0."""
    resource_of = create_string_buffer(512)
    driver.kept.append(resource_of)
    driver.must("cuDeviceGetDevResource", 0, byref(resource_of), 1)
    return driver.out("cuDevResourceGenerateDesc", byref(resource_of), 1)


@kind("gpu", lambda driver, it: None)
def gpu(driver: Driver) -> int:
    """Returns an `nvmlDevice_t`; no call destroys such a handle."""
    handle = c_uint64()
    if start_nvml(driver).nvmlDeviceGetHandleByIndex_v2(0, byref(handle)):
        raise RuntimeError("NVML has no GPU")
    return handle.value


def start_nvml(driver: Driver) -> CDLL:
    """Loads and initialises NVML."""
    nvml = CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        raise RuntimeError("NVML does not start")
    return nvml


class IpcHandle(ctypes.Structure):
    """`CUipcMemHandle`, which is passed by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


OTHERS = {"stream": "graph", "graph": "stream", "event": "stream", "context": "stream"}
"""The kind of handle passed as the wrong kind: for other kinds, a stream."""
IN_CONTEXTS = {
    "stream", "event", "pointer", "array", "mipmap", "module", "function", "graph", "node",
    "child node", "exec", "exec of child", "mapping",
}  # fmt: skip
"""Kinds whose handles belong to a context, or hold an object that does."""

# ---- arguments

STRUCTURES: dict[str, Callable[[Driver, dict[str, int]], int]] = {}
FIELDS: dict[str, dict[str, str]] = {}


def structure(name: str, **fields: str) -> Callable:
    """Registers how a structure is built, and the kinds of the handles in it."""

    def enter(build: Callable[[Driver, dict[str, int]], int]) -> Callable:
        STRUCTURES[name], FIELDS[name] = build, fields
        return build

    return enter


def kernel_node(driver: Driver, code: int, kern: int = 0, where: int = 0) -> int:
    """Returns a `CUDA_KERNEL_NODE_PARAMS_v2`, whose first bytes are the first version."""
    return driver.block(*kernel_words(driver, code, kern, where))


def kernel_words(driver: Driver, code: int, kern: int, where: int) -> list[tuple[str, object]]:
    shape_of = [("I", 1)] * 6
    return [
        ("Q", code),
        *shape_of,
        ("I", 0),
        ("I", 0),
        ("Q", parameters(driver)),
        ("Q", 0),
        ("Q", kern),
        ("Q", where),
    ]


def parameters(driver: Driver) -> int:
    """Returns the kernel's parameters: one null pointer."""
    value = driver.keep(c_uint64(0))
    return driver.keep(c_uint64(value))


@structure("KernelNodeParamsV1", function="function")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return kernel_node(driver, handles["function"])


@structure("KernelNodeParams", function="function", kernel="kernel", context="context")
def _(driver: Driver, handles: dict[str, int]) -> int:
    code = 0 if "kernel" in handles or "context" in handles else handles["function"]
    kern = handles.get("kernel") or (0 if "function" in handles else handles.get("kernel", 0))
    if "context" in handles and "kernel" not in handles:
        kern = kernel(driver)
    return kernel_node(driver, code, kern, handles.get("context", 0))


@structure("NodeParams", function="function", kernel="kernel", child="graph")
def _(driver: Driver, handles: dict[str, int]) -> int:
    head = [("i", 4 if "child" in handles else 0), ("i", 0), ("i", 0), ("i", 0)]
    if "child" in handles:
        return driver.block(*head, ("Q", handles["child"]))
    return driver.block(
        *head, *kernel_words(driver, handles.get("function", 0), handles.get("kernel", 0), 0)
    )


@structure("LaunchConfig", stream="stream")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return driver.block(*[("I", 1)] * 6, ("I", 0), ("I", 0), ("Q", handles["stream"]))


@structure("LaunchParams", function="function", stream="stream")
def _(driver: Driver, handles: dict[str, int]) -> int:
    code = handles.get("function", None)
    code = function(driver) if code is None else code
    queue = handles.get("stream", None)
    queue = stream(driver) if queue is None else queue
    return driver.block(
        ("Q", code), *[("I", 1)] * 6, ("I", 0), ("I", 0), ("Q", queue), ("Q", parameters(driver))
    )


@structure("GraphInstantiateParams", upload_stream="stream")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return driver.block(("Q", 2), ("Q", handles["upload_stream"]))


@structure("AllocationProp")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return properties(driver)


@structure("AccessDesc")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return driver.block(("i", 1), ("i", 0), ("i", 3))


@structure("Location")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return driver.block(("i", 1), ("i", 0))


@structure("ArrayDescriptor")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return driver.block(("Q", 1024), ("Q", 1024), ("I", 0x20), ("I", 1))


@structure("Array3dDescriptor")
def _(driver: Driver, handles: dict[str, int]) -> int:
    return shape(driver)


BY_TYPE = {
    "Context": "context", "Stream": "stream", "Event": "event", "MemPool": "pool",
    "Graph": "graph", "Node": "node", "GraphExec": "exec", "AllocationHandle": "memory",
    "NvmlDevice": "gpu",
}  # fmt: skip
"""The kind of handle of each type in the hook table."""
BY_NAME = {
    "function": "function",
    "kernel": "kernel",
    "module": "module",
    "library": "library",
    "green": "green",
    "description": "description",
}
"""The kind of handle of `Opaque` arguments, by argument name."""
NUMBERS = {
    "bytesize": 4 * MIB, "size": 2 * MIB, "width": 4096, "height": 16, "element": 4, "gx": 1,
    "gy": 1, "gz": 1, "bx": 1, "by": 1, "bz": 1, "threads": 32, "blocks": 1, "levels": 2,
    "value": 1024, "keep": 0, "version": 12000,
}  # fmt: skip
"""Values of plain arguments; all others are 0."""
SPECIAL = {
    ("cuMemExport", "kind"): 1, ("cuMemImport", "kind"): 1, ("cuMemSetMemPool", "kind"): 1,
    ("cuMemAllocManaged", "flags"): 1, ("cuGreenCtx", "flags"): 1, ("cuIpcOpen", "flags"): 1,
    ("cuDeviceGetAttribute", "attribute"): 16, ("cuMemPoolGetAttribute", "attribute"): 5,
    ("cuMemPoolSetAttribute", "attribute"): 4, ("cuPointerGetAttribute", "attribute"): 9,
    ("cuFuncGetAttribute", "attribute"): 3, ("cuKernelGetAttribute", "attribute"): 3,
    ("cuFuncSetAttribute", "attribute"): 8, ("cuKernelSetAttribute", "attribute"): 8,
    ("cuDeviceGetGraphMemAttribute", "attribute"): 2,
    ("cuLaunchCooperativeKernelMultiDevice", "count"): 1, ("cuLaunchGrid", "width"): 1,
    ("cuLaunchGrid", "height"): 1, ("cuMemSetAccess", "count"): 1,
    ("cuMemPoolSetAccess", "count"): 1,
}  # fmt: skip
"""Values of plain arguments of some functions, by the beginning of the function's name and the
argument's name.
"""
VERSIONS = {"NvmlMemoryV2": 0x02000028, "NvmlProcessDetailList": 0x01000018}
"""The first word of structures that begin with a version."""
NEVER = {"cuMulticastCreate"}
"""Functions that are not called, because they can put a machine out of service."""
PLAIN = {"usize", "u64", "u32", "i32", "Device"}


@dataclass(frozen=True)
class Argument:
    """One argument of a hooked function."""

    name: str
    type: str


@dataclass(frozen=True)
class Case:
    """A function, the place of the wrong handle, and what is wrong; the case `valid` has no wrong
    handle.
    """

    function: str
    place: str
    wrong: str

    @property
    def name(self) -> str:
        return f"{self.function} {self.place} {self.wrong}".replace("  ", " ").strip()


def signatures(text: str) -> dict[str, list[Argument]]:
    """Reads the functions of `signatures.txt`."""
    found = {}
    for line in text.splitlines():
        name, arguments = re.fullmatch(r"(\w+)\((.*)\)", line).groups()
        pairs = [argument.split(": ") for argument in arguments.split(", ") if argument]
        found[name] = [Argument(*pair) for pair in pairs]
    return found


def kind_of(function_name: str, argument: Argument) -> str | None:
    """Returns the kind of handle that an argument is, or None."""
    if argument.type == "Array":
        return "mipmap" if "Mipmapped" in function_name else "array"
    if argument.type == "Node" and "ChildGraph" in function_name:
        return "child node"
    if argument.type == "GraphExec" and "ChildGraph" in function_name:
        return "exec of child"
    if argument.type in ("DevicePtr", "DevicePtrV1"):
        return {
            "cuMemUnmap": "mapping", "cuMemMap": "reservation", "cuMemSetAccess": "mapping",
            "cuMemFreeAsync": "pool pointer", "cuMemFreeAsync_ptsz": "pool pointer",
        }.get(function_name, "pointer")  # fmt: skip
    if argument.type == "Opaque" and argument.name == "address":
        return "mapping"
    if argument.type == "Opaque":
        return BY_NAME.get(argument.name)
    return BY_TYPE.get(argument.type)


def wrongs(name: str) -> list[str]:
    """Returns what can be wrong with a handle of this kind."""
    found = ["null", "wrong-kind"]
    if name not in ("description", "gpu"):
        found.append("destroyed")
    if name in IN_CONTEXTS:
        found += ["foreign", "orphaned"]
    return found


def places(name: str, arguments: list[Argument]) -> Iterator[tuple[str, str]]:
    """Yields the places of a function's handles, with their kinds."""
    for argument in arguments:
        found = kind_of(name, argument)
        if found:
            yield argument.name, found
        elif argument.type == "IpcHandle":
            yield argument.name, "ipc"
        elif argument.type.startswith("In<"):
            for field, what in FIELDS[argument.type[3:-1]].items():
                yield f"{argument.name}.{field}", what


def cases(table: dict[str, list[Argument]]) -> list[Case]:
    """Returns all cases, in the table's order."""
    found = []
    for name, arguments in table.items():
        if name in NEVER:
            continue
        found.append(Case(name, "", "valid"))
        for place, what in places(name, arguments):
            ways = ["null", "destroyed"] if what == "ipc" else wrongs(what)
            found += [Case(name, place, wrong) for wrong in ways]
        for argument in arguments:
            if argument.type.startswith(("Out<", "In<")):
                found.append(Case(name, argument.name, "no-place"))
    return found


def sample(table: dict[str, list[Argument]], everything: list[Case]) -> list[Case]:
    """Selects a part of the cases: every handle of every function is wrong once, and every kind of
    handle is wrong in every way.

    The part leaves out null places and handles of destroyed contexts.
    """
    ways: dict[tuple[str, str], list[Case]] = {}
    for case in everything:
        if case.wrong not in ("valid", "no-place", "orphaned"):
            ways.setdefault((case.function, case.place), []).append(case)
    by_kind: dict[str, list[list[Case]]] = {}
    for (function_name, place), found in ways.items():
        by_kind.setdefault(dict(places(function_name, table[function_name]))[place], []).append(
            found
        )
    chosen: set[Case] = set()
    for found in by_kind.values():
        # The ways alternate over the places, and the last place gets the ways that had none.
        chosen.update(cases_of[turn % len(cases_of)] for turn, cases_of in enumerate(found))
        chosen.update(found[-1][len(found) :])
    return [case for case in everything if case in chosen]


def handle(driver: Driver, what: str, wrong: str) -> int:
    """Returns a handle of this kind, with this wrong about it."""
    if what == "gpu":
        # NVML must be initialised, since otherwise it returns the same error for every handle.
        start_nvml(driver)
    if wrong == "null":
        return 0
    if wrong == "valid" and what in ("node", "child node") and getattr(driver, "node", None):
        # The node belongs to the executable graph among the arguments.
        return driver.node
    if wrong == "wrong-kind":
        return MAKERS[OTHERS.get(what, "stream")](driver)
    if wrong in ("foreign", "orphaned"):
        driver.begin_second()
        made = MAKERS[what](driver)
        driver.end_second()
        if wrong == "orphaned":
            driver.must("cuCtxDestroy_v2", c_void_p(driver.second))
        return made
    made = MAKERS[what](driver)
    if wrong == "destroyed":
        ENDERS[what](driver, made)
    return made


def argument_of(driver: Driver, case: Case, argument: Argument) -> object:
    """Returns the value that is passed for an argument."""
    name, kind_name = argument.name, argument.type
    wrong = case.wrong if case.place == name else "valid"
    found = kind_of(case.function, argument)
    if found:
        made = handle(driver, found, wrong)
        return ctypes.c_uint32(made & 0xFFFFFFFF) if kind_name == "DevicePtrV1" else c_uint64(made)
    if wrong == "no-place":
        return None
    if kind_name == "IpcHandle":
        place = IpcHandle()
        if wrong != "null":
            address = pointer(driver)
            driver.must("cuIpcGetMemHandle", byref(place), c_uint64(address))
            if wrong == "destroyed":
                driver.must("cuMemFree_v2", c_uint64(address))
        return place
    if kind_name.startswith("In<"):
        build, fields = STRUCTURES[kind_name[3:-1]], FIELDS[kind_name[3:-1]]
        at, _, field = case.place.partition(".")
        if at == name and field in fields:
            return c_void_p(build(driver, {field: handle(driver, fields[field], case.wrong)}))
        first = next(iter(fields), None)
        return c_void_p(
            build(driver, {first: handle(driver, fields[first], "valid")} if first else {})
        )
    if kind_name.startswith("Out<"):
        return c_void_p(driver.block(("I", VERSIONS.get(kind_name[4:-1], 0))))
    if kind_name in PLAIN:
        value = NUMBERS.get(name, 0)
        value = next(
            (
                value
                for (start, of), value in SPECIAL.items()
                if of == name and case.function.startswith(start)
            ),
            value,
        )
        return {"usize": c_size_t, "u64": c_uint64, "u32": ctypes.c_uint32}.get(kind_name, c_int)(
            value
        )
    if kind_name == "Image":
        return c_char_p(PTX)
    if kind_name == "FileName":
        file = os.memfd_create("module")
        os.write(file, PTX)
        return c_char_p(f"/proc/self/fd/{file}".encode())
    if kind_name == "Opaque":
        if name in ("name", "symbol"):
            return c_char_p(
                b"variable" if "Global" in case.function else b"k" if name == "name" else b"cuInit"
            )
        if name == "os_handle":
            file = c_int()
            driver.must(
                "cuMemExportToShareableHandle",
                byref(file),
                c_uint64(memory(driver)),
                1,
                c_uint64(0),
            )
            return c_void_p(file.value)
        if name in ("handle", "shareable", "error_node", "result", "info", "value", "desc", "data"):
            return c_void_p(driver.block())
        if name == "config":
            return c_void_p(driver.block(*[("I", 1)] * 6, ("I", 0), ("I", 0), ("Q", 0)))
        if name == "params" and "Launch" in case.function:
            return c_void_p(parameters(driver))
        if name in OPTIONAL:
            return None
    raise LookupError(
        f"{case.function}: handles.py does not know what to pass for {name}: {kind_name}"
    )


OPTIONAL = {
    "jit_options", "jit_values", "options", "values", "dependencies", "edges", "log", "extra",
    "shared_of", "affinity", "params", "nodes", "get_proc_address", "status", "uuid",
    "ext_mem", "ext_sem", "callback", "data",
}  # fmt: skip
"""`Opaque` arguments that may be null, or for which null is the best value."""

# ---- a case in its process


def play(case: Case, arguments: list[Argument], ready: Callable[[], None]) -> list[int] | str:
    """Makes the call. Returns its status, and those of a synchronise call and of allocations after
    it.
    """
    driver = Driver()
    place = CDLL("libnvidia-ml.so.1") if case.function.startswith("nvml") else driver.cuda
    called = getattr(place, case.function, None)
    if called is None:
        return "missing"
    values = [argument_of(driver, case, argument) for argument in arguments]
    if "GPU_CHECK_FILL_FREED" in os.environ:
        fill_freed()
    # The simulated driver writes a line for each of its functions that fails.
    failed = Path(journal(os.getpid()))
    failed.write_text("")
    ready()
    statuses: list = [called(*values), sorted(set(failed.read_text().split()))]
    statuses.append(driver.call("cuCtxSynchronize"))
    statuses.append(driver.patiently("cuMemAlloc_v2", byref(c_uint64()), c_size_t(MIB)))
    statuses.append(driver.patiently("cuMemAllocAsync", byref(c_uint64()), c_size_t(MIB), None))
    return statuses


def fill_freed() -> None:
    """Allocates the C library's free memory, zeroed, so that a function that reads a freed object
    always finds the same bytes.
    """
    take = CDLL(None).calloc
    take.restype, take.argtypes = c_void_p, (c_size_t, c_size_t)
    for size in range(16, 8192, 16):
        for _ in range(16):
            take(1, size)


def journal(pid: int) -> str:
    """Returns the file in which the simulated driver notes the failed functions of a process."""
    return f"{tempfile.gettempdir()}/gpulimit-failed.{pid}"


class Running:
    """A case that runs in its process."""

    def __init__(self, case: Case, arguments: list[Argument]) -> None:
        self.case, self.text = case, b""
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            self.child(case, arguments, writing)
        os.close(writing)
        self.pipe, self.until = reading, time.monotonic() + PATIENCE

    @staticmethod
    def child(case: Case, arguments: list[Argument], writing: int) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["GPULIMIT_SIM_FAILED"] = journal(os.getpid())
        if "GPULIMIT_MAX" in os.environ:
            # Each case has a group, because a call with an unknown handle may be charged all that
            # its group has left.
            start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
            os.environ["GPULIMIT_GROUP"] = f"job-{os.getpid()}-{start}"
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        try:
            found = play(case, arguments, lambda: os.write(writing, b"ready\n"))
        except BaseException as failed:  # noqa: BLE001
            found = f"not set up: {failed!r}"
        os.write(writing, json.dumps(found).encode())
        os._exit(0)

    def outcome(self) -> object:
        """Returns the outcome, after the process has ended or its time is over."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        Path(journal(self.pid)).unlink(missing_ok=True)
        said, _, rest = self.text.rpartition(b"ready\n")
        if os.WIFSIGNALED(status):
            where = "" if b"ready\n" in self.text else " before the call"
            killed = os.WTERMSIG(status)
            return "hang" + where if killed == signal.SIGKILL else f"signal {killed}{where}"
        return json.loads(rest or b'"ended without a word"')


def run(table: dict[str, list[Argument]], wanted: list[Case], workers: int) -> dict[str, object]:
    """Runs cases, and returns their outcomes by name."""
    found: dict[str, object] = {}
    waiting, running = list(reversed(wanted)), []
    while running or waiting:
        while waiting and len(running) < workers:
            case = waiting.pop()
            running.append(Running(case, table[case.function]))
        by_pipe = {one.pipe: one for one in running}
        for pipe in select.select(list(by_pipe), [], [], 0.2)[0]:
            one = by_pipe[pipe]
            text = os.read(pipe, 65536)
            one.text += text
            if not text:
                found[one.case.name] = one.outcome()
                running.remove(one)
        for one in running:
            if time.monotonic() > one.until:
                os.kill(one.pid, signal.SIGKILL)
    return found


def differences(
    bare: dict[str, object], limited: dict[str, object], before: dict[str, dict]
) -> dict[str, object]:
    """Returns the cases with another outcome under a limit; of the cases in `before`, those whose
    outcome without a limit is the same again.

    On the simulated driver, functions may fail only if they fail without gpulimit or in the valid
    case; without the valid case this is not compared.
    """
    found: dict[str, object] = {}
    for name, here in limited.items():
        there = bare.get(name)
        if isinstance(here, str) or isinstance(there, str) or there is None:
            # Which signal a call on freed memory ends by depends on the bytes there.
            crash = re.compile(r"^signal \d+")
            same = crash.sub("signal", str(here)) == crash.sub("signal", str(there))
        else:
            valid = limited.get(f"{name.split()[0]} valid")
            asked = (
                set(here[1]) - set(there[1]) - set(valid[1]) if isinstance(valid, list) else set()
            )
            same = here[0] == there[0] and here[2:] == there[2:] and not asked
        repeats = name not in before or before[name]["bare"] == there
        if repeats and not same:
            found[name] = {"bare": there, "limited": here}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="cases whose names contain it"
    )
    parser.add_argument("--again", type=Path, metavar="COMPARISON", help="only what differed there")
    parser.add_argument(
        "--sample",
        action="store_true",
        help="a part of the cases: every handle of every function once, every kind in every way",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cases at a time")
    parser.add_argument(
        "--signatures",
        default=Path(__file__).with_name("signatures.txt"),
        type=Path,
        help="what the functions take",
    )
    parser.add_argument("--list", action="store_true", help="only name the cases")
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("BARE", "LIMITED"),
        help="files of outcomes; says what differs",
    )
    parser.add_argument("--out", type=Path, default=Path("/dev/stdout"), help="the file to write")
    options = parser.parse_args()
    before = json.loads(options.again.read_text()) if options.again else {}
    if options.compare:
        bare, limited = (json.loads(file.read_text()) for file in options.compare)
        options.out.write_text(json.dumps(differences(bare, limited, before), indent=1))
        return
    table = signatures(options.signatures.read_text())
    everything = cases(table)
    if options.sample and not options.again:
        everything = sample(table, everything)
    wanted = [case for case in everything if re.search(options.only, case.name)]
    if options.again:
        # The valid cases of these functions run, too: a function that fails there is no difference.
        functions = {name.split()[0] for name in before}
        wanted = [
            case
            for case in wanted
            if case.name in before or (case.wrong == "valid" and case.function in functions)
        ]
    if options.list:
        print("\n".join(case.name for case in wanted))
        return
    options.out.write_text(json.dumps(run(table, wanted, options.workers), indent=0))


if __name__ == "__main__":
    main()

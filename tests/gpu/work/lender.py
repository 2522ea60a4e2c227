"""An agent that shares memory with other processes both ways: by cudaIpc, and by descriptors of
cuMemCreate memory.

Sizes are bytes; `status` is the driver's return code.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys

import agent
import driver

cuda = driver.cuda
u64, size_t, pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
FILE_DESCRIPTOR = 1
PIDFD_OPEN, PIDFD_GETFD = 434, 438
libc = ctypes.CDLL(None, use_errno=True)
addresses: dict[str, int] = {}
handles: dict[str, int] = {}
mappings: dict[str, tuple[int, int]] = {}
descriptors: dict[str, int] = {}


class Ipc(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def take(name: str, size: int) -> dict:
    """Allocates memory under a name (cuMemAlloc)."""
    address = u64()
    status = cuda.cuMemAlloc_v2(ctypes.byref(address), size_t(size))
    addresses[name] = address.value
    return {"status": status}


def give(name: str) -> dict:
    """Frees the memory of this name (cuMemFree)."""
    return {"status": cuda.cuMemFree_v2(u64(addresses.pop(name)))}


def stir(size: int) -> dict:
    """Allocates and frees `size` bytes until another order comes; returns the number of rounds."""
    rounds = status = 0
    while status == 0 and not select.select([sys.stdin], [], [], 0)[0]:
        status = max(take("stirred", size)["status"], give("stirred")["status"])
        rounds += 1
    return {"status": status, "rounds": rounds}


def ipc_get(name: str) -> dict:
    """Returns the handle by which other processes open the memory."""
    handle = Ipc()
    status = cuda.cuIpcGetMemHandle(ctypes.byref(handle), u64(addresses[name]))
    return {"status": status, "handle": bytes(handle.bytes).hex()}


def ipc_open(name: str, handle: str) -> dict:
    """Opens another process's memory under a name."""
    address, given = u64(), Ipc.from_buffer_copy(bytes.fromhex(handle))
    status = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), given, ctypes.c_uint(1))
    addresses[name] = address.value
    return {"status": status}


def ipc_close(name: str) -> dict:
    """Closes the opened memory of this name."""
    return {"status": cuda.cuIpcCloseMemHandle(u64(addresses.pop(name)))}


def placed() -> ctypes.Array:
    """Returns a CUmemAllocationProp: pinned memory of GPU 0 that has a descriptor."""
    properties = (ctypes.c_byte * 128)()
    struct.pack_into("iiii", properties, 0, 1, FILE_DESCRIPTOR, 1, 0)
    return properties


def create(name: str, size: int) -> dict:
    """Creates memory under a name (cuMemCreate)."""
    handle = u64()
    status = cuda.cuMemCreate(ctypes.byref(handle), size_t(size), placed(), u64(0))
    handles[name] = handle.value
    return {"status": status}


def export(name: str) -> dict:
    """Exports the memory; other processes find its descriptor by pid and number."""
    descriptor = ctypes.c_int(-1)
    status = cuda.cuMemExportToShareableHandle(
        ctypes.byref(descriptor), u64(handles[name]), FILE_DESCRIPTOR, u64(0)
    )
    descriptors[name] = descriptor.value
    return {"status": status, "pid": os.getpid(), "descriptor": descriptor.value}


def close(name: str) -> dict:
    """Closes the exported descriptor."""
    os.close(descriptors.pop(name))
    return {"status": 0}


def import_(name: str, pid: int, descriptor: int, size: int) -> dict:
    """Imports another process's memory, maps it, and keeps only the mapping."""
    process = libc.syscall(PIDFD_OPEN, pid, 0)
    mine = libc.syscall(PIDFD_GETFD, process, descriptor, 0)
    if mine < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    handle, address = u64(), u64()
    status = cuda.cuMemImportFromShareableHandle(
        ctypes.byref(handle), pointer(mine), FILE_DESCRIPTOR
    )
    os.close(mine)
    os.close(process)
    if status == 0:
        cuda.cuMemAddressReserve(ctypes.byref(address), size_t(size), size_t(0), u64(0), u64(0))
        status = cuda.cuMemMap(address, size_t(size), size_t(0), handle, u64(0))
        cuda.cuMemRelease(handle)
        mappings[name] = (address.value, size)
    return {"status": status}


def unmap(name: str) -> dict:
    """Unmaps the imported memory of this name."""
    address, size = mappings.pop(name)
    return {"status": cuda.cuMemUnmap(u64(address), size_t(size))}


def release(name: str) -> dict:
    """Releases the handle of this name (cuMemRelease)."""
    return {"status": cuda.cuMemRelease(u64(handles.pop(name)))}


if __name__ == "__main__":
    own = {
        "take": take,
        "give": give,
        "stir": stir,
        "ipc_get": ipc_get,
        "ipc_open": ipc_open,
        "ipc_close": ipc_close,
    }
    mapped = {
        "create": create,
        "export": export,
        "close": close,
        "import": import_,
        "unmap": unmap,
        "release": release,
    }
    agent.serve(
        {"start": driver.start, "alloc": driver.alloc, "free": driver.free, "fill": driver.fill}
        | own
        | mapped
    )

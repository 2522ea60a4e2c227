"""An agent that takes managed memory by pools and variables, and loads code that hides its size.
All sizes are bytes.
"""

from __future__ import annotations

import ctypes

import agent
import driver
from driver import cuda, pointer, size_t, u64

MANAGED = 2
"""CU_MEM_ALLOCATION_TYPE_MANAGED"""
PLACES = {"none": (0, 0), "device": (1, 0)}
"""The type and number of each place (CUmemLocation)."""
pool = pointer()
taken: list[tuple[int, int]] = []
loaded: list[tuple[str, int]] = []


def make(place: str) -> dict:
    """Makes a pool of managed memory at that place, or uses the default one of the device."""
    if place == "default":
        location = (ctypes.c_int * 2)(*PLACES["device"])
        return {"status": cuda.cuMemGetDefaultMemPool(ctypes.byref(pool), location, MANAGED)}
    properties = (ctypes.c_int * 22)(MANAGED, 0, *PLACES[place])
    return {"status": cuda.cuMemPoolCreate(ctypes.byref(pool), properties)}


def take(size: int, times: int) -> dict:
    """Allocates `size` bytes up to `times` times from the pool, and writes them on the GPU; stops
    at the first refusal.
    """
    done = status = 0
    while done < times and not status:
        address = u64()
        status = cuda.cuMemAllocFromPoolAsync(ctypes.byref(address), size_t(size), pool, None)
        if not status:
            taken.append((address.value, size))
            done += 1
            status = touch(address.value, size)
    return {"done": done, "status": status}


def touch(address: int, size: int) -> int:
    """Writes to the whole allocation on the GPU."""
    status = cuda.cuMemsetD8_v2(u64(address), ctypes.c_ubyte(1), size_t(size))
    return max(status, cuda.cuCtxSynchronize())


def give() -> dict:
    """Frees the allocations from the pool."""
    status = max([cuda.cuMemFreeAsync(u64(address), None) for address, _ in taken], default=0)
    taken.clear()
    return {"status": max(status, cuda.cuCtxSynchronize())}


def destroy() -> dict:
    """Destroys the pool."""
    return {"status": cuda.cuMemPoolDestroy(pool)}


def ptx(declarations: str) -> bytes:
    """Returns a PTX text with these declarations and a kernel."""
    return (
        f".version 7.8\n.target sm_52\n.address_size 64\n{declarations}\n.visible .entry"
        " kernel()\n{\n ret;\n}\n\0".encode()
    )


def load(declarations: str, times: int = 1, library: bool = False) -> dict:
    """Loads a text up to `times` times, as modules or libraries; stops at the first refusal."""
    text, done, status = ptx(declarations), 0, 0
    while done < times and not status:
        code, module = pointer(), pointer()
        if library:
            status = cuda.cuLibraryLoadData(ctypes.byref(code), text, None, None, 0, None, None, 0)
            if not status:
                loaded.append(("cuLibraryUnload", code.value))
                status = cuda.cuLibraryGetModule(ctypes.byref(module), code)
        else:
            status = cuda.cuModuleLoadData(ctypes.byref(code), text)
            if not status:
                loaded.append(("cuModuleUnload", code.value))
        done += not status
    return {"done": done, "status": status}


def unload() -> dict:
    """Unloads all loaded code."""
    status = max([getattr(cuda, name)(pointer(code)) for name, code in loaded], default=0)
    loaded.clear()
    return {"status": status}


if __name__ == "__main__":
    orders = (driver.start, make, take, give, destroy, load, unload)
    agent.serve({order.__name__: order for order in orders})

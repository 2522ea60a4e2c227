"""An agent on the plain driver API, without any framework; it starts in the time of a context.

All sizes are bytes; `status` is the driver's return code (0 success, 2 out of memory).
"""

from __future__ import annotations

import ctypes
import os
import sys

import agent

cuda = ctypes.CDLL("libcuda.so.1")
size_t, pointer, u64 = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
OUT_OF_MEMORY = 2
context = pointer()
held: list[int] = []
pooled: list[int] = []
RELEASE_THRESHOLD = 4
"""CU_MEMPOOL_ATTR_RELEASE_THRESHOLD"""


def start() -> dict:
    """Calls cuInit and makes the primary context; returns the status of each step."""
    steps = {"cuInit": cuda.cuInit(0)}
    if not steps["cuInit"]:
        device = ctypes.c_int()
        steps["cuDeviceGet"] = cuda.cuDeviceGet(ctypes.byref(device), 0)
        steps["cuDevicePrimaryCtxRetain"] = cuda.cuDevicePrimaryCtxRetain(
            ctypes.byref(context), device
        )
        if context:
            steps["cuCtxSetCurrent"] = cuda.cuCtxSetCurrent(context)
    return {"steps": steps, "status": max(steps.values())}


def allocate(size: int) -> int:
    """Calls cuMemAlloc; returns the driver's status."""
    address = u64()
    status = cuda.cuMemAlloc_v2(ctypes.byref(address), size_t(size))
    if not status:
        held.append(address.value)
    return status


def alloc(size: int, times: int = 1) -> dict:
    """Makes `times` allocations of `size` bytes; stops at the first refusal."""
    done = status = 0
    while done < times and not status:
        status = allocate(size)
        done += not status
    return {"done": done, "status": status}


def fill(seed: int, largest: int, smallest: int = 4096) -> dict:
    """Allocates odd sizes until refused, then ever smaller ones."""

    def one(size: int) -> None:
        status = allocate(size)
        if status != 0:
            raise MemoryError(status)

    found = agent.fill(one, seed, largest, smallest)
    return {"bytes": found["bytes"], "status": int(found.get("text", "0"))}


def churn(seed: int, rounds: int, largest: int) -> dict:
    """Allocates until refused, frees half, and starts over: several such processes race for the
    last bytes.
    """
    granted = refused = 0
    source = agent.sizes(seed, largest)
    for _ in range(rounds):
        status = allocate(next(source))
        granted += not status
        if status == OUT_OF_MEMORY:
            refused += 1
            for address in held[::2]:
                cuda.cuMemFree_v2(u64(address))
            del held[::2]
        elif status:
            return {"granted": granted, "refused": refused, "status": status}
    return {"granted": granted, "refused": refused, "status": 0}


def pool_take(size: int, times: int) -> dict:
    """Allocates `size` bytes `times` times from the default pool, on the default stream."""
    status = 0
    for _ in range(times):
        address = u64()
        status = max(status, cuda.cuMemAllocAsync(ctypes.byref(address), size_t(size), None))
        pooled.append(address.value)
    return {"status": max(status, cuda.cuCtxSynchronize())}


def pool_give() -> dict:
    """Frees the pool's allocations, and waits for the frees."""
    status = max(cuda.cuMemFreeAsync(u64(address), None) for address in pooled)
    pooled.clear()
    return {"status": max(status, cuda.cuCtxSynchronize())}


def default_pool() -> ctypes.c_void_p:
    """Returns the default pool of GPU 0."""
    pool = pointer()
    if cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0):
        raise RuntimeError("no default pool")
    return pool


def pool_keep(threshold: int) -> dict:
    """Sets how many bytes the default pool keeps over a synchronise call."""
    return {
        "status": cuda.cuMemPoolSetAttribute(
            default_pool(), RELEASE_THRESHOLD, ctypes.byref(u64(threshold))
        )
    }


def pool_trim(keep: int) -> dict:
    """Calls cuMemPoolTrimTo; `keep` is in bytes."""
    return {"status": cuda.cuMemPoolTrimTo(default_pool(), size_t(keep))}


def synchronise() -> dict:
    """Calls cuCtxSynchronize."""
    return {"status": cuda.cuCtxSynchronize()}


def free() -> dict:
    """Frees all allocations."""
    status = max([cuda.cuMemFree_v2(u64(address)) for address in held], default=0)
    held.clear()
    return {"status": status}


def words(size: int) -> list[tuple[int, int]]:
    """Returns addresses all over the held allocations, which have `size` bytes each, and a number
    for each address.
    """
    places = [address + at for address in held for at in range(0, size, 16 << 20)]
    return list(zip(places, range(1, len(places) + 1)))


def mark(size: int) -> dict:
    """Writes its number to every address of `words`."""
    steps = [cuda.cuMemsetD32_v2(u64(place), number, size_t(1)) for place, number in words(size)]
    return {"status": max([*steps, cuda.cuCtxSynchronize()])}


def marked(size: int) -> dict:
    """Counts the addresses of `words` that hold another number."""
    status = wrong = 0
    for place, number in words(size):
        word = ctypes.c_uint()
        status = max(status, cuda.cuMemcpyDtoH_v2(ctypes.byref(word), u64(place), size_t(4)))
        wrong += word.value != number
    return {"status": status, "wrong": wrong}


def own_state() -> dict:
    """Returns what the driver says of this process: 0 running, 1 locked, 2 checkpointed."""
    found = ctypes.c_int(-1)
    status = cuda.cuCheckpointProcessGetState(os.getpid(), ctypes.byref(found))
    return {"status": status, "state": found.value}


def info() -> dict:
    """Returns the results of cuMemGetInfo and cuDeviceTotalMem."""
    left, total, device = size_t(), size_t(), size_t()
    status = cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
    cuda.cuDeviceTotalMem_v2(ctypes.byref(device), 0)
    return {
        "status": status,
        "free": left.value,
        "total": total.value,
        "device_total": device.value,
    }


def calls() -> dict:
    """Returns the codes and results of a mix of right and wrong calls, which must be the same with
    and without the library.
    """
    found: dict[str, object] = {
        "start": start()["steps"],
        "info": info()["total"],
        "device": info()["device_total"],
    }
    address, number, text = u64(), ctypes.c_int(), ctypes.create_string_buffer(64)
    found["zero"] = cuda.cuMemAlloc_v2(ctypes.byref(address), size_t(0))
    found["null"] = cuda.cuMemAlloc_v2(None, size_t(4096))
    found["huge"] = cuda.cuMemAlloc_v2(ctypes.byref(address), size_t(1 << 46))
    found["free_wrong"] = cuda.cuMemFree_v2(u64(0x1234560000))
    found["free_null"] = cuda.cuMemFree_v2(u64(0))
    found["alloc"] = cuda.cuMemAlloc_v2(ctypes.byref(address), size_t(3 << 20))
    found["free"] = cuda.cuMemFree_v2(address)
    found["free_twice"] = cuda.cuMemFree_v2(address)
    found["async"] = cuda.cuMemAllocAsync(ctypes.byref(address), size_t(1 << 20), None)
    found["async_free"] = cuda.cuMemFreeAsync(address, None)
    found["sync"] = cuda.cuCtxSynchronize()
    found["bad_device"] = cuda.cuDeviceGet(ctypes.byref(number), 4711)
    found["bad_total"] = cuda.cuDeviceTotalMem_v2(ctypes.byref(size_t()), 4711)
    found["name"] = cuda.cuDeviceGetName(text, 64, 0)
    found["name_text"] = text.value.decode()
    found["version"] = cuda.cuDriverGetVersion(ctypes.byref(number))
    found["version_number"] = number.value
    found["pitch"] = cuda.cuMemAllocPitch_v2(
        ctypes.byref(address), ctypes.byref(size_t()), size_t(1000), size_t(10), 4
    )
    found["pitch_free"] = cuda.cuMemFree_v2(address)
    return found


def become() -> None:
    """Becomes the same program again, by exec."""
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    pools = (pool_take, pool_give, pool_keep, pool_trim, synchronise)
    orders = (start, alloc, fill, churn, free, mark, marked, own_state, info, calls, become, *pools)
    agent.serve({order.__name__: order for order in orders})

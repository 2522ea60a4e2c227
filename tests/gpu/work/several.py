"""An agent on the plain driver API that uses several GPUs at once.

GPUs are named by CUDA's ordinals. All sizes are bytes; `status` is the driver's return code (0
success, 2 out of memory).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import (
    CDLL,
    byref,
    c_byte,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
)

import agent

cuda = CDLL("libcuda.so.1")
MIB = 1 << 20
READ_WRITE = 3
contexts: dict[int, c_void_p] = {}
queues: dict[int, c_void_p] = {}
held: list[Callable[[], int]] = []
"""Functions that free the allocations, in the order of the allocations."""


def must(name: str, *arguments: object) -> None:
    """Makes a call that must succeed."""
    status = getattr(cuda, name)(*arguments)
    if status:
        raise RuntimeError(f"{name} answered {status}")


def identify() -> dict:
    """Returns the GPUs in CUDA's order with their total memory, without making a context."""
    must("cuInit", 0)
    count, found = c_int(), []
    must("cuDeviceGetCount", byref(count))
    for ordinal in range(count.value):
        raw, total = create_string_buffer(16), c_size_t()
        must("cuDeviceGetUuid_v2", raw, ordinal)
        must("cuDeviceTotalMem_v2", byref(total), ordinal)
        digits = raw.raw.hex()
        uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        found.append({"uuid": f"GPU-{uuid}", "total": total.value})
    return {"gpus": found}


def start(devices: list[int]) -> dict:
    """Makes the primary contexts of these GPUs, and a stream in each."""
    must("cuInit", 0)
    for device in devices:
        context, queue = c_void_p(), c_void_p()
        must("cuDevicePrimaryCtxRetain", byref(context), device)
        contexts[device] = context
        enter(device)
        must("cuStreamCreate", byref(queue), 1)
        queues[device] = queue
    return {}


def peers() -> dict:
    """Returns whether the first two GPUs can map each other's memory."""
    return {"peers": reaches(0, 1) and reaches(1, 0)}


def enter(device: int) -> None:
    must("cuCtxSetCurrent", contexts[device])


def access(devices: list[int]) -> object:
    """Returns a CUmemAccessDesc for each of these GPUs, for reading and writing."""
    return (c_byte * (12 * len(devices)))(
        *struct.pack(
            "iii" * len(devices), *(word for device in devices for word in (1, device, READ_WRITE))
        )
    )


def reaches(user: int, device: int) -> bool:
    """Returns whether one GPU can map the memory of another."""
    can = c_int()
    must("cuDeviceCanAccessPeer", byref(can), user, device)
    return bool(can.value)


# ---- ways to take memory of `device` while the context of `user` is current; each returns the
# status


def linear(device: int, user: int, size: int) -> int:
    address = c_uint64()
    enter(device)
    status = cuda.cuMemAlloc_v2(byref(address), c_size_t(size))
    if status == 0:
        held.append(lambda: cuda.cuMemFree_v2(address))
    return status


def stream_ordered(device: int, user: int, size: int) -> int:
    address, queue = c_uint64(), queues[device]
    status = cuda.cuMemAllocAsync(byref(address), c_size_t(size), queue)
    if status == 0:
        held.append(lambda: cuda.cuMemFreeAsync(address, queue))
    return status


pools: dict[tuple[int, int], c_void_p] = {}


def pool(device: int, user: int, size: int) -> int:
    """Allocates from a pool of one GPU, on a stream of the other GPU if that can map the memory."""
    user = user if reaches(user, device) else device
    address, queue = c_uint64(), queues[user]
    if (device, user) not in pools:
        made, prop = c_void_p(), (c_byte * 88)()
        struct.pack_into("iiii", prop, 0, 1, 0, 1, device)
        must("cuMemPoolCreate", byref(made), prop)
        if user != device:
            must("cuMemPoolSetAccess", made, access([user]), c_size_t(1))
        pools[device, user] = made
    status = cuda.cuMemAllocFromPoolAsync(
        byref(address), c_size_t(size), pools[device, user], queue
    )
    if status == 0:
        held.append(lambda: cuda.cuMemFreeAsync(address, queue))
    return status


def virtual(device: int, user: int, size: int) -> int:
    """Takes physical memory of one GPU, mapped for the other if possible."""
    handle, address, prop = c_uint64(), c_uint64(), (c_byte * 32)()
    struct.pack_into("iiii", prop, 0, 1, 0, 1, device)
    status = cuda.cuMemCreate(byref(handle), c_size_t(size), prop, c_uint64(0))
    if status:
        return status
    users = [device, user] if user != device and reaches(user, device) else [device]
    must(
        "cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)
    )
    must("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
    must("cuMemRelease", handle)
    held.append(
        lambda: cuda.cuMemUnmap(address, c_size_t(size))
        or cuda.cuMemAddressFree(address, c_size_t(size))
    )
    status = cuda.cuMemSetAccess(address, c_size_t(size), access(users), c_size_t(len(users)))
    if status == 0 and user in users:
        must("cuMemsetD8_v2", address, 7, c_size_t(size))
    return status


WAYS = {"linear": linear, "async": stream_ordered, "pool": pool, "vmm": virtual}


def fill(way: str, device: int, user: int, most: int) -> dict:
    """Takes memory until refused, in large steps and then in small ones, but no more than `most`
    bytes.
    """
    taken, status = 0, 0
    for step in (96 * MIB, 2 * MIB):
        while taken < most:
            enter(user)
            status = WAYS[way](device, user, step)
            if status:
                break
            taken += step
    for queue in queues.values():
        must("cuStreamSynchronize", queue)
    return {"taken": taken, "status": status}


def take(way: str, device: int, user: int, size: int) -> dict:
    """Takes memory once."""
    enter(user)
    return {"status": WAYS[way](device, user, size)}


def managed(device: int, size: int) -> dict:
    """Takes managed memory in the context of a GPU, and writes it there."""
    address = c_uint64()
    enter(device)
    status = cuda.cuMemAllocManaged(byref(address), c_size_t(size), 1)
    if status == 0:
        held.append(lambda: cuda.cuMemFree_v2(address))
        must("cuMemsetD8_v2", address, 1, c_size_t(size))
        must("cuCtxSynchronize")
    return {"status": status}


def peer(first: int, second: int, size: int) -> dict:
    """Copies a buffer from one GPU to the other and back, with peer access if the GPUs have it, and
    compares.
    """
    address, mapped = {}, []
    for user, device in ((first, second), (second, first)):
        enter(user)
        if reaches(user, device):
            status = cuda.cuCtxEnablePeerAccess(contexts[device], 0)
            if status not in (0, 704):  # 704: peer access is enabled already
                raise RuntimeError(f"cuCtxEnablePeerAccess answered {status}")
            mapped.append(user)
        address[user] = c_uint64()
        must("cuMemAlloc_v2", byref(address[user]), c_size_t(size))
    there, back = bytes(range(256)) * 16, create_string_buffer(4096)
    enter(first)
    must("cuMemcpyHtoD_v2", address[first], there, c_size_t(4096))
    must(
        "cuMemcpyPeer",
        address[second],
        contexts[second],
        address[first],
        contexts[first],
        c_size_t(size),
    )
    enter(second)
    must(
        "cuMemcpyPeerAsync",
        address[first],
        contexts[first],
        address[second],
        contexts[second],
        c_size_t(size),
        queues[second],
    )
    must("cuStreamSynchronize", queues[second])
    if second in mapped:
        # One GPU writes to the memory of the other.
        must("cuMemsetD8_v2", c_uint64(address[first].value + 4096), 9, c_size_t(4096))
        must("cuCtxSynchronize")
    enter(first)
    must("cuMemcpyDtoH_v2", back, address[first], c_size_t(4096))
    held.extend(lambda kept=kept: cuda.cuMemFree_v2(kept) for kept in address.values())
    return {"same": back.raw == there, "mapped": len(mapped)}


marks: list[tuple[int, int, int]] = []


def mark(device: int, size: int) -> dict:
    """Takes linear memory of a GPU, and writes another number to each of its blocks of 16 MiB."""
    address = c_uint64()
    enter(device)
    must("cuMemAlloc_v2", byref(address), c_size_t(size))
    held.append(lambda: cuda.cuMemFree_v2(address))
    for place in range(address.value, address.value + size, 16 * MIB):
        marks.append((device, place, len(marks) + 1))
        must("cuMemsetD32_v2", c_uint64(place), c_uint(len(marks)), c_size_t(1))
    must("cuCtxSynchronize")
    return {}


def marked() -> dict:
    """Counts the blocks that hold another number."""
    wrong = 0
    for device, place, number in marks:
        word = c_uint()
        enter(device)
        must("cuMemcpyDtoH_v2", byref(word), c_uint64(place), c_size_t(4))
        wrong += word.value != number
    return {"wrong": wrong, "right": len(marks) - wrong}


def free() -> dict:
    """Frees everything."""
    status = 0
    for give in reversed(held):
        status = give() or status
    held.clear()
    marks.clear()
    for queue in queues.values():
        status = cuda.cuStreamSynchronize(queue) or status
    for made in pools.values():
        status = cuda.cuMemPoolDestroy(made) or status
    pools.clear()
    for device in contexts:
        default = c_void_p()
        must("cuDeviceGetDefaultMemPool", byref(default), device)
        must("cuMemPoolTrimTo", default, c_size_t(0))
    return {"status": status}


def info(device: int) -> dict:
    """Returns the results of cuMemGetInfo in the context of a GPU, and of cuDeviceTotalMem."""
    left, total, device_total = c_size_t(), c_size_t(), c_size_t()
    enter(device)
    must("cuMemGetInfo_v2", byref(left), byref(total))
    must("cuDeviceTotalMem_v2", byref(device_total), device)
    return {"free": left.value, "total": total.value, "device_total": device_total.value}


def nvml() -> dict:
    """Returns NVML's answers to this process in NVML's order: memory by both versions, and the
    processes that use each GPU.
    """
    library = CDLL("libnvidia-ml.so.1")

    def ask(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} answered {status}")

    ask("nvmlInit_v2")
    count, found = c_uint(), []
    ask("nvmlDeviceGetCount_v2", byref(count))
    for index in range(count.value):
        device, memory, memory_v2 = c_void_p(), (c_ulonglong * 3)(), (c_ulonglong * 5)()
        uuid, number, entries = (
            create_string_buffer(96),
            c_uint(512),
            create_string_buffer(512 * 24),
        )
        ask("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device))
        ask("nvmlDeviceGetUUID", device, uuid, c_uint(96))
        ask("nvmlDeviceGetMemoryInfo", device, memory)
        memory_v2[0] = 0x2000028
        ask("nvmlDeviceGetMemoryInfo_v2", device, memory_v2)
        ask("nvmlDeviceGetComputeRunningProcesses_v3", device, byref(number), entries)
        listed = [struct.unpack_from("IxxxxQ", entries, 24 * at) for at in range(number.value)]
        found.append({
            "uuid": uuid.value.decode(),
            "memory": dict(zip(("total", "free", "used"), memory)),
            "memory_v2": dict(zip(("total", "reserved", "free", "used"), memory_v2[1:])),
            "processes": {str(pid): used for pid, used in listed},
        })
    ask("nvmlShutdown")
    return {"gpus": found}


if __name__ == "__main__":
    orders = (
        identify, start, peers, fill, take, managed, peer, mark, marked, free, info, nvml
    )  # fmt: skip
    agent.serve({order.__name__: order for order in orders})

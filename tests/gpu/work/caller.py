"""Threads that call functions of the driver all the time. Most of these functions crash a process
whose memory is on the host, or fail there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer

import agent
import driver

cuda = driver.cuda
PTX = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n"
CLOCK_RATE = 13

over = threading.Event()
threads: list[threading.Thread] = []
answers: dict[str, dict[int, int]] = {}


def made(name: str, *arguments: object) -> c_void_p:
    """Returns the handle that a function makes."""
    handle = c_void_p()
    status = getattr(cuda, name)(byref(handle), *arguments)
    if status:
        raise RuntimeError(f"{name} answered {status}")
    return handle


def module() -> int:
    """Loads code and unloads it."""
    code = c_void_p()
    return cuda.cuModuleLoadData(byref(code), PTX) or cuda.cuModuleUnload(code)


def pool(stream: c_void_p) -> int:
    """Takes memory of the current pool and gives it back."""
    address = c_uint64()
    status = cuda.cuMemAllocAsync(byref(address), c_size_t(1 << 20), stream)
    return status or cuda.cuMemFreeAsync(address, stream)


def calls() -> dict[str, Callable[[], int]]:
    """Returns what each thread calls."""
    stream = made("cuStreamCreate", 1)
    event = made("cuEventCreate", 0)
    cuda.cuEventRecord(event, stream)
    shared = c_uint64()
    cuda.cuMemAlloc_v2(byref(shared), c_size_t(2 << 20))
    free, total, value, time = c_size_t(), c_size_t(), c_int(), c_float()
    name = create_string_buffer(96)
    return {
        "stream query": lambda: cuda.cuStreamQuery(stream),
        "stream synchronise": lambda: cuda.cuStreamSynchronize(stream),
        "event query": lambda: cuda.cuEventQuery(event),
        "event synchronise": lambda: cuda.cuEventSynchronize(event),
        "elapsed": lambda: cuda.cuEventElapsedTime(byref(time), event, event),
        "context synchronise": lambda: cuda.cuCtxSynchronize(),
        "info": lambda: cuda.cuMemGetInfo_v2(byref(free), byref(total)),
        "clock rate": lambda: cuda.cuDeviceGetAttribute(byref(value), CLOCK_RATE, 0),
        "name": lambda: cuda.cuDeviceGetName(name, len(name), 0),
        "pool": lambda: pool(stream),
        "module": module,
    }


def begin() -> dict:
    """Starts a thread for each of the calls."""
    context = c_void_p()
    cuda.cuCtxGetCurrent(byref(context))

    def repeat(name: str, call: Callable[[], int]) -> None:
        cuda.cuCtxSetCurrent(context)
        while not over.is_set():
            status = call()
            answers[name][status] = answers[name].get(status, 0) + 1

    for name, call in calls().items():
        answers[name] = {}
        threads.append(threading.Thread(target=repeat, args=(name, call)))
        threads[-1].start()
    return {"threads": len(threads)}


def end() -> dict:
    """Ends the threads. Returns how often each call got each status."""
    over.set()
    for thread in threads:
        thread.join()
    return {"answers": answers}


if __name__ == "__main__":
    orders = (driver.start, begin, end)
    agent.serve({order.__name__: order for order in orders})

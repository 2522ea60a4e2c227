"""An agent of plain driver calls that gives memory back under pressure. All sizes are bytes."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import agent
import driver

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import gpulimit  # noqa: E402

GLOBAL, NON_BLOCKING = 0, 1
asked: list[dict] = []
stream, graph = ctypes.c_void_p(), ctypes.c_void_p()


def give(size: int, device: object) -> None:
    """Frees all allocations; the module calls this in its own thread."""
    driver.cuda.cuCtxSetCurrent(driver.context)
    # The other process may get the memory, and ask, before all of it is free.
    asked.append({"bytes": size})
    asked[-1] |= driver.free()


def nothing(size: int, device: object) -> None:
    """Answers, and gives nothing back."""
    asked.append({"bytes": size})


def silent(size: int, device: object) -> None:
    """Does not answer."""
    asked.append({"bytes": size})
    time.sleep(3600)


def register(answer: str) -> dict:
    """Registers for pressure; returns whether the process is in a group."""
    gpulimit.on_pressure({"all": give, "nothing": nothing, "silent": silent}[answer])
    return {"active": gpulimit.active()}


def hold(size: int, times: int) -> dict:
    """Makes `times` allocations of `size` bytes."""
    return driver.alloc(size, times)


def request(size: int) -> dict:
    """Allocates; returns the driver's status and how long the call took."""
    began = time.monotonic()
    status = driver.allocate(size)
    return {"status": status, "ms": (time.monotonic() - began) * 1e3}


def requests() -> dict:
    """Returns what has been asked of this process, and what it holds."""
    return {"asked": asked, "held": len(driver.held)}


def begin() -> dict:
    """Begins a capture in the global mode, which any thread's free could spoil."""
    made = driver.cuda.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
    return {"status": made or driver.cuda.cuStreamBeginCapture_v2(stream, GLOBAL)}


def end() -> dict:
    """Ends the capture; returns its status, and how often the process was asked during it."""
    count = len(asked)
    status = driver.cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
    return {"status": status, "asked": count}


if __name__ == "__main__":
    orders = (driver.start, register, hold, request, requests, begin, end)
    agent.serve({order.__name__: order for order in orders})

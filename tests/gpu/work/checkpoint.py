"""An agent that locks, checkpoints, restores and unlocks other processes, as cuda-checkpoint does.
It has no context and no limit.

`status` is the driver's return code.
"""

from __future__ import annotations

import ctypes
import time

import agent

cuda = ctypes.CDLL("libcuda.so.1")
CALLS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")


def function(name: str):
    """Returns the driver's function, or None if the driver lacks it."""
    return getattr(cuda, f"cuCheckpointProcess{name}", None)


def start() -> dict:
    """Calls cuInit, and returns the names of the functions that this driver lacks."""
    return {"status": cuda.cuInit(0), "lacking": [name for name in CALLS if function(name) is None]}


def state(pid: int) -> dict:
    """Returns the state of a process: 0 running, 1 locked, 2 checkpointed, 3 failed."""
    found = ctypes.c_int(-1)
    return {"status": function("GetState")(pid, ctypes.byref(found)), "state": found.value}


def change(name: str, pid: int) -> dict:
    """Makes one of the four steps, without options except the time limit of a lock, 20 s; returns
    how long it took.
    """
    options = (ctypes.c_uint * 16)()
    if name == "Lock":
        options[0] = 20000
    began = time.monotonic()
    status = function(name)(pid, ctypes.byref(options))
    return {"status": status, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    agent.serve({"start": start, "state": state, "change": change})

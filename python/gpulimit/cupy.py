"""CuPy: gives the unused memory of its pools back."""

from __future__ import annotations

import importlib
import sys
from typing import Any, List, Union

from . import _pressure

_pools: List[Any] = []


def enable(*pools: Any) -> None:
    """Gives the unused memory of CuPy's default pool back under pressure, or that of `pools`.

    Arrays stay where they are. A pool of `cupy.cuda.MemoryAsyncPool` waits for the GPU when it
    gives memory back. Call this again to name other pools.
    """
    cupy: Any = importlib.import_module("cupy")
    _pools[:] = pools or [cupy.get_default_memory_pool()]
    _pressure.on_pressure(_free)


def disable() -> None:
    """Ends what `enable` has begun."""
    _pressure.off_pressure(_free)


def _free(size: int, device: Union[int, str]) -> None:
    if not isinstance(device, int):
        return
    cupy: Any = sys.modules["cupy"]
    # A pool frees what is on the current device of the calling thread. The thread keeps the device:
    # going back would make a context on another device, which the program may not use.
    cupy.cuda.Device(device).use()
    for pool in _pools:
        pool.free_all_blocks()

"""An agent on Numba's CUDA target. All sizes are bytes."""

from __future__ import annotations

import agent
import numpy

# numba-cuda registers an overload for this name, which NumPy 2.5 no longer has.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack

from numba import cuda  # noqa: E402

held: list = []


@cuda.jit
def mark(block):
    """Writes to the start of a block."""
    block[cuda.threadIdx.x] = 1


def info() -> dict:
    """Returns the free and total memory that Numba reports."""
    left, total = cuda.current_context().get_memory_info()
    return {"free": int(left), "total": int(total)}


def kernels() -> dict:
    """Runs one compiled kernel, with copies to the GPU and back."""
    block = cuda.to_device(numpy.zeros(64, numpy.uint8))
    mark[1, 64](block)
    return {"checksum": float(block.copy_to_host().sum())}


def allocate(size: int):
    """Allocates a device array of `size` bytes and runs a kernel on it."""
    block = cuda.device_array(size, numpy.uint8)
    mark[1, 64](block)
    return block


def fill(seed: int = 3, largest: int = 300 << 20) -> dict:
    """Allocates odd sizes until Numba's own out-of-memory error, then ever smaller ones."""
    found = agent.fill(allocate, seed, largest)
    held.extend(found.pop("blocks"))
    cuda.synchronize()
    return found


def free() -> dict:
    """Drops the arrays, and works off Numba's list of pending frees."""
    held.clear()
    context = cuda.current_context()
    # The place of the list differs between versions.
    owner = context if hasattr(context, "deallocations") else context.memory_manager
    owner.deallocations.clear()
    cuda.synchronize()
    return {}


def alloc(size: int) -> dict:
    """Allocates one array of `size` bytes."""
    held.append(allocate(size))
    return {}


if __name__ == "__main__":
    agent.serve({order.__name__: order for order in (info, kernels, fill, free, alloc)})

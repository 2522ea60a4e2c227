"""An agent on CuPy. All sizes are bytes."""

from __future__ import annotations

import agent
import cupy

held: list[cupy.ndarray] = []
kernel = cupy.RawKernel(
    'extern "C" __global__ void mark(unsigned char *p) { p[threadIdx.x] = 1; }', "mark"
)


def use(allocator: str) -> dict:
    """Selects CuPy's allocator: its own pool, the driver's stream-ordered pool, or none."""
    choices = {"pool": cupy.get_default_memory_pool().malloc, "none": None}
    cupy.cuda.set_allocator(
        cupy.cuda.MemoryAsyncPool().malloc if allocator == "async" else choices[allocator]
    )
    return {}


def info() -> dict:
    """Returns the free and total memory that CuPy reports."""
    left, total = cupy.cuda.Device(0).mem_info
    return {"free": left, "total": total}


def kernels() -> dict:
    """Runs ufuncs, a raw kernel, cuBLAS, sort and reductions."""
    x = cupy.arange(512 * 512, dtype=cupy.float32).reshape(512, 512) / 1e6
    y = cupy.sort(x @ x, axis=1) + cupy.exp(x)
    b = cupy.zeros(64, cupy.uint8)
    kernel((1,), (64,), (b,))
    return {"checksum": float(y.sum() + b.sum())}


def allocate(size: int) -> cupy.ndarray:
    """Allocates an array of `size` bytes and runs a kernel on it."""
    block = cupy.empty(size, cupy.uint8)
    kernel((1,), (64,), (block,))
    return block


def fill(seed: int = 2, largest: int = 300 << 20) -> dict:
    """Allocates odd sizes until cupy.cuda.memory.OutOfMemoryError, then ever smaller ones."""
    found = agent.fill(allocate, seed, largest)
    held.extend(found.pop("blocks"))
    cupy.cuda.Device().synchronize()
    return {**found, "is_cupy_oom": found.get("exception") == "cupy.cuda.memory.OutOfMemoryError"}


def free() -> dict:
    """Drops the arrays and the pool's cache."""
    held.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.cuda.Device().synchronize()
    return {}


def alloc(size: int) -> dict:
    """Allocates one array of `size` bytes."""
    held.append(allocate(size))
    return {}


if __name__ == "__main__":
    agent.serve({order.__name__: order for order in (use, info, kernels, fill, free, alloc)})

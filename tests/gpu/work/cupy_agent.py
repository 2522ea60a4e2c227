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


start: list[cupy.ndarray] = []


def keep(size: int) -> dict:
    """Makes the start of a calculation, and an array of `size` bytes with known contents."""
    values = cupy.arange(2048 * 2048, dtype=cupy.float32).reshape(2048, 2048)
    start.append((values % 977 - 488) / 20000)
    held.append(cupy.arange(size // 4, dtype=cupy.int32))
    cupy.cuda.Device().synchronize()
    return {}


def steps(count: int) -> dict:
    """Makes steps from the start. Returns the sum after each, bit for bit, and whether the array
    has its contents.
    """
    x, sums = start[0], []
    for _ in range(count):
        x = cupy.tanh(x @ x) + x / 2
        sums.append(float(x.sum()).hex())
    same = bool((held[0] == cupy.arange(held[0].size, dtype=cupy.int32)).all())
    return {"sums": sums, "same": same}


if __name__ == "__main__":
    orders = (use, info, kernels, fill, free, alloc, keep, steps)
    agent.serve({order.__name__: order for order in orders})

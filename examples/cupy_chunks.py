"""Sums numbers that do not fit into memory, in chunks of half of the free memory.

gpulimit run --max 4G -- python examples/cupy_chunks.py
"""

import cupy

ITEM = 8


def total(count: int) -> float:
    """Return the sum of 0 … count - 1, computed one chunk at a time."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    # The other half is for what the sum itself needs.
    chunk = max(1, free // 2 // ITEM)
    result, begin = 0.0, 0
    while begin < count:
        end = min(begin + chunk, count)
        result += float(cupy.arange(begin, end, dtype=cupy.float64).sum())
        cupy.get_default_memory_pool().free_all_blocks()
        begin = end
    return result


def main() -> None:
    free, whole = cupy.cuda.runtime.memGetInfo()
    print(f"memory: {whole / 2**30:.1f} GiB, free {free / 2**30:.1f} GiB")
    count = int(1.5 * whole) // ITEM
    try:
        cupy.arange(count, dtype=cupy.float64)
        print("all at once: fits after all")
    except cupy.cuda.memory.OutOfMemoryError as error:
        print(f"all at once: {str(error)[:60]}")
    found, right = total(count), count * (count - 1) / 2
    print(f"in chunks: {found:.6e}, {'right' if abs(found - right) <= 1e-9 * right else 'WRONG'}")


if __name__ == "__main__":
    main()

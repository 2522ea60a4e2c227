"""As much of CuPy as the tests need, on the simulated driver."""

import ctypes
import threading

from torch import cuda as _cuda

uint8 = "uint8"


class _Pool:
    def __init__(self):
        self.blocks = []

    def malloc(self, size):
        for block in self.blocks:
            if block[0] == size:
                self.blocks.remove(block)
                return block
        address = ctypes.c_uint64()
        status = _cuda._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if status != 0:
            self.free_all_blocks()
            status = _cuda._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if status != 0:
            raise cuda.memory.OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
        return size, address.value

    def free_all_blocks(self):
        for _, address in self.blocks:
            _cuda._call("cuMemFree_v2", ctypes.c_uint64(address))
        self.blocks.clear()

    def free_bytes(self):
        return sum(size for size, _ in self.blocks)


class cuda:
    class memory:
        class OutOfMemoryError(MemoryError):
            pass

    class Device:
        used_by = {}

        def __init__(self, ordinal):
            self.ordinal = ordinal

        def use(self):
            self.used_by[threading.get_ident()] = self.ordinal


class _Array:
    def __init__(self, size):
        self.block = _pool.malloc(size)

    def __del__(self):
        if hasattr(self, "block"):
            _pool.blocks.append(self.block)


_pool = _Pool()


def get_default_memory_pool():
    return _pool


def zeros(length, dtype=uint8):
    return _Array(length)

"""Arrays on the simulated driver, which the platform's allocator frees when they are deleted."""

import ctypes
import os

from rmm import mr
from torch import cuda

assert os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] == "platform"


class _Array:
    def __init__(self, size):
        self.address = mr.CudaMemoryResource().allocate(size)

    def delete(self):
        cuda._call("cuMemFree_v2", ctypes.c_uint64(self.address))


def zeros(length):
    return _Array(4 * length)

"""As much of RMM as the tests need, on the simulated driver."""

import ctypes

from torch import cuda as _cuda


class mr:
    class CudaMemoryResource:
        def allocate(self, size):
            address = ctypes.c_uint64()
            status = _cuda._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            if status != 0:
                raise MemoryError("std::bad_alloc: out_of_memory: CUDA error")
            return address.value

    class FailureCallbackResourceAdaptor:
        def __init__(self, upstream, callback):
            self.upstream, self.callback = upstream, callback

        def allocate(self, size):
            while True:
                try:
                    return self.upstream.allocate(size)
                except MemoryError:
                    if not self.callback(size):
                        raise

    @staticmethod
    def set_current_device_resource(resource):
        global _resource
        _resource = resource


_resource = mr.CudaMemoryResource()


class DeviceBuffer:
    def __init__(self, *, size):
        self.address = _resource.allocate(size)

    def __del__(self):
        if hasattr(self, "address"):
            _cuda._call("cuMemFree_v2", ctypes.c_uint64(self.address))

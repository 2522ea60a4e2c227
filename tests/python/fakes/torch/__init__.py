"""As much of PyTorch as the tests need, on the simulated driver.

The allocator caches, and empties its cache before it raises, as PyTorch's does: it takes blocks of
2 MiB from the driver, never splits one, and calls the observers without its lock.
"""

import ctypes
import threading

uint8 = "uint8"
float32 = "float32"
_BLOCK = 2 << 20


class OutOfMemoryError(RuntimeError):
    pass


class _Allocator:
    def __init__(self):
        self.lock = threading.RLock()
        self.free = []  # (size, address)
        self.reserved = self.allocated = self.peak = 0
        self.observers = []
        self.empties = 0

    def take(self, size):
        size = max(1, -(-size // _BLOCK)) * _BLOCK
        with self.lock:
            fitting = sorted(block for block in self.free if size <= block[0] <= 2 * size)
            if fitting:
                self.free.remove(fitting[0])
                self.allocated += fitting[0][0]
                return fitting[0]
            address = ctypes.c_uint64()
            status = cuda._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            if status == 2:
                self.empty()
                status = cuda._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            if status == 0:
                self.reserved += size
                self.allocated += size
                self.peak = max(self.peak, self.reserved)
                return size, address.value
        for observer in self.observers:
            observer(0, size, 1 << 36, 0)
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes ({status})")

    def give(self, block):
        with self.lock:
            self.allocated -= block[0]
            self.free.append(block)

    def empty(self):
        with self.lock:
            if cuda._capturing:
                raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
            self.empties += 1
            for size, address in self.free:
                cuda._call("cuMemFree_v2", ctypes.c_uint64(address))
                self.reserved -= size
            self.free.clear()


_allocator = _Allocator()


class _Tensor:
    def __init__(self, size):
        self.size = size
        self.block = _allocator.take(size)

    def __del__(self):
        if hasattr(self, "block"):
            _allocator.give(self.block)

    def nbytes(self):
        return self.size


class cuda:
    OutOfMemoryError = OutOfMemoryError
    _driver = None
    _capturing = False
    _queued = []
    _device = {}

    @classmethod
    def _call(cls, name, *arguments):
        cls.init()
        cls._driver.cuCtxSetCurrent(cls._context)
        return getattr(cls._driver, name)(*arguments)

    @classmethod
    def init(cls):
        if cls._driver is None:
            driver = ctypes.CDLL("libcuda.so.1")
            cls._context = ctypes.c_void_p()
            assert driver.cuInit(0) == 0
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(cls._context), 0) == 0
            cls._driver = driver
            driver.cuCtxSetCurrent(cls._context)
            for call in cls._queued:
                call()

    @classmethod
    def _lazy_call(cls, call):
        cls._queued.append(call) if cls._driver is None else call()

    @classmethod
    def is_initialized(cls):
        return cls._driver is not None

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def current_device():
        return 0

    @classmethod
    def set_device(cls, device):
        cls._device[threading.get_ident()] = device

    @staticmethod
    def synchronize():
        cuda._call("cuCtxSynchronize")

    @staticmethod
    def memory_reserved(device=None):
        return _allocator.reserved

    @staticmethod
    def memory_allocated(device=None):
        return _allocator.allocated

    @staticmethod
    def memory_snapshot():
        free = [{"size": size, "state": "inactive"} for size, _ in _allocator.free]
        used = [{"size": _allocator.allocated, "state": "active_allocated"}]
        return [{"device": 0, "is_expandable": False, "blocks": used + free}]

    @staticmethod
    def max_memory_reserved(device=None):
        return _allocator.peak

    @staticmethod
    def reset_peak_memory_stats(device=None):
        _allocator.peak = _allocator.reserved

    @staticmethod
    def memory_summary(device=None, abbreviated=False):
        return f"| PyTorch's own summary: {_allocator.reserved} bytes reserved |"

    @staticmethod
    def empty_cache():
        if cuda.is_initialized():
            _allocator.empty()


class _C:
    @staticmethod
    def _cuda_attach_out_of_memory_observer(observer):
        assert cuda.is_initialized()
        _allocator.observers.append(observer)


def empty(*shape, dtype=float32, device=None):
    size = 1 if dtype == uint8 else 4
    for length in shape:
        size *= length
    return _Tensor(size)


zeros = ones = empty

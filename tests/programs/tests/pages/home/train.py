"""The train.py of the pages: holds 1 GiB of GPU memory for the given number of seconds."""

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
status = (
    cuda.cuInit(0)
    or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    or cuda.cuCtxSetCurrent(context)
)
status = status or cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30))
print("trained" if status == 0 else f"failed with {status}", flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
sys.exit(status)

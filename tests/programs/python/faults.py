"""Uses the GPU with faulthandler enabled before or after that: faults.py before|after own|none.

With "own", the program finally truncates a file of its own and reads from the mapping.
"""

import ctypes
import faulthandler
import mmap
import os
import sys

when, what = sys.argv[1:]
if when == "before":
    faulthandler.enable()
driver = ctypes.CDLL("libcuda.so.1")


def alloc(mib):
    pointer = ctypes.c_ulonglong()
    return driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))


context = ctypes.c_void_p()
started = (
    driver.cuInit(0)
    or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    or driver.cuCtxSetCurrent(context)
)
print("start", started, alloc(100), flush=True)
if when == "after":
    faulthandler.enable()
print("hold", flush=True)
sys.stdin.readline()
if what == "own":
    file = os.memfd_create("own")
    os.ftruncate(file, 4096)
    own = mmap.mmap(file, 4096)
    own[0] = 1
    os.ftruncate(file, 0)
    print(own[0], flush=True)
print("again", alloc(100), flush=True)

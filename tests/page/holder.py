"""A member of a group: takes and frees GPU memory as its standard input says, until that ends.

`take BYTES` allocates, `free` frees the last allocation. Prints the driver's code for each line.
"""

import ctypes
import sys


def main():
    driver = ctypes.CDLL("libcuda.so.1")
    held = []

    def take(size):
        address = ctypes.c_uint64()
        code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(size)))
        if code == 0:
            held.append(address)
        return code

    context, device = ctypes.c_void_p(), ctypes.c_int()
    codes = [
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuCtxCreate_v2(ctypes.byref(context), 0, device),
    ]
    print(max(codes), flush=True)
    for line in sys.stdin:
        verb, *sizes = line.split()
        code = take(*sizes) if verb == "take" else driver.cuMemFree_v2(held.pop())
        print(code, flush=True)


main()

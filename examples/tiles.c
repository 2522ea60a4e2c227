// Fills one and a half times the memory that there is, one tile at a time. A tile has the size that
// cuMemGetInfo reports as free, halved for as long as the driver has no such piece.
//
//   cc -I/usr/local/cuda/include examples/tiles.c -lcuda -o tiles
//   gpulimit run --max 4G -- ./tiles
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

static void must(CUresult status, const char *what) {
    if (status == CUDA_SUCCESS)
        return;
    const char *name = "?";
    cuGetErrorName(status, &name);
    fprintf(stderr, "tiles: %s: %s\n", what, name);
    exit(1);
}

// Allocates the largest tile that is free now, and returns it with its size.
static CUdeviceptr tile(size_t *size) {
    size_t free_bytes, total;
    must(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
    for (*size = free_bytes; *size >= MIB; *size /= 2) {
        CUdeviceptr found;
        CUresult status = cuMemAlloc(&found, *size);
        if (status == CUDA_SUCCESS)
            return found;
        if (status != CUDA_ERROR_OUT_OF_MEMORY)
            must(status, "cuMemAlloc");
    }
    fprintf(stderr, "tiles: less than 1 MiB is free\n");
    exit(1);
}

int main(void) {
    CUdevice device;
    CUcontext context;
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");

    size_t free_bytes, total;
    must(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
    printf("memory: %zu MiB, free %zu MiB\n", total / MIB, free_bytes / MIB);

    CUdeviceptr all;
    CUresult status = cuMemAlloc(&all, total + total / 2);
    const char *name = "?";
    cuGetErrorName(status, &name);
    printf("all at once: %s\n", name);

    size_t done = 0, tiles = 0;
    while (done < total + total / 2) {
        size_t size;
        CUdeviceptr here = tile(&size);
        must(cuMemsetD8(here, 7, size), "cuMemsetD8");
        must(cuMemFree(here), "cuMemFree");
        done += size;
        tiles++;
    }
    printf("in %zu tiles: %zu MiB\n", tiles, done / MIB);
    must(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    return 0;
}

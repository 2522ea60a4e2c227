// Fills half again as much memory as there is, a tile at a time: the size of a tile is what
// cuMemGetInfo says is free, and halved while the driver says that there is not so much in one
// piece.
//
//   cc -I/usr/local/cuda/include examples/tiles.c -lcuda -o tiles && gpulimit run --max 4G --
//   ./tiles
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

// The largest tile that can be had now, and its size.
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
    fprintf(stderr, "tiles: not even 1 MiB\n");
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

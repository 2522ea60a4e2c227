// A program that keeps results in GPU memory as a cache, and gives the cache back when another
// program of its group needs memory. It also runs without gpulimit: then nobody asks.
//
// cc -I/usr/local/cuda/include -Iinclude examples/gives_back.c -lcuda -lpthread -ldl
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpulimit.h"

#define ENTRY ((size_t)64 << 20)
#define ENTRIES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr cache[ENTRIES];
static CUcontext context;

static void check(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        const char *name = "unknown error";
        cuGetErrorName(result, &name);
        printf("%s: %s\n", what, name);
        exit(1);
    }
}

// Frees entries of the cache until `bytes` are free. Returns the bytes that it has freed.
static size_t free_entries(size_t bytes) {
    size_t freed = 0;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < ENTRIES && freed < bytes; at++) {
        if (cache[at]) {
            check(cuMemFree(cache[at]), "cuMemFree");
            cache[at] = 0;
            freed += ENTRY;
        }
    }
    pthread_mutex_unlock(&lock);
    return freed;
}

// Waits until somebody needs memory. A program that frees memory must not do so during a capture.
static void *give_back(void *unused) {
    struct gpulimit_pressure pressure;
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (;;) {
        pressure.size = sizeof pressure;
        int code = gpulimit_pressure_wait(-1, &pressure);
        if (code == GPULIMIT_INTERRUPTED)
            continue;
        if (code != GPULIMIT_OK)
            return unused;
        if (gpulimit_captures() == 0) {
            size_t freed = free_entries(pressure.bytes);
            printf("group %s needs %u MiB: freed %u MiB\n", pressure.group,
                   (unsigned)(pressure.bytes >> 20), (unsigned)(freed >> 20));
            fflush(stdout);
        }
    }
}

int main(void) {
    CUdevice device;
    pthread_t thread;
    struct gpulimit_memory memory = {.size = sizeof memory};
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");

    // The cache takes half of what is left.
    size_t room = 1024 * ENTRY;
    if (gpulimit_memory("0", &memory) == GPULIMIT_OK) {
        printf("limit %u MiB, available %u MiB\n", (unsigned)(memory.limit >> 20),
               (unsigned)(memory.available >> 20));
        room = memory.available / 2;
    }
    int entries = 0;
    for (; entries < ENTRIES && (size_t)(entries + 1) * ENTRY <= room; entries++)
        check(cuMemAlloc(&cache[entries], ENTRY), "cuMemAlloc");
    printf("cached %d MiB\n", entries * (int)(ENTRY >> 20));
    fflush(stdout);

    int asked = gpulimit_pressure_register() == GPULIMIT_OK;
    if (asked && pthread_create(&thread, NULL, give_back, NULL) == 0) {
        getchar(); // the work of the program
        gpulimit_pressure_unregister(); // the only registration: ends the thread's wait
        pthread_join(thread, NULL);
    }
    free_entries(ENTRIES * ENTRY);
    check(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    return 0;
}

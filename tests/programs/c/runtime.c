// NVIDIA's CUDA runtime, loaded from the named file or linked in (-DLINKED): allocations below and
// above a limit of 2 GiB.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void *runtime;

#ifdef LINKED
#define NAMES                                                                                      \
    NAME(cudaDeviceReset)                                                                          \
    NAME(cudaFree) NAME(cudaFreeArray) NAME(cudaFreeAsync) NAME(cudaFreeMipmappedArray)            \
        NAME(cudaGetDeviceProperties) NAME(cudaGraphAddMemAllocNode) NAME(cudaGraphCreate)         \
            NAME(cudaGraphExecDestroy) NAME(cudaGraphInstantiateWithFlags) NAME(cudaGraphLaunch)   \
                NAME(cudaMalloc) NAME(cudaMalloc3DArray) NAME(cudaMallocArray)                     \
                    NAME(cudaMallocAsync) NAME(cudaMallocFromPoolAsync) NAME(cudaMallocManaged)    \
                        NAME(cudaMallocMipmappedArray) NAME(cudaMallocPitch) NAME(cudaMemGetInfo)  \
                            NAME(cudaMemPoolCreate) NAME(cudaMemPoolDestroy)                       \
                                NAME(cudaStreamSynchronize)
#define NAME(name) extern int name();
NAMES
#undef NAME
#endif

static void *find(const char *name) {
#ifdef LINKED
#define NAME(known)                                                                                \
    if (!strcmp(name, #known))                                                                     \
        return (void *)known;
    NAMES
#undef NAME
    void *found = NULL;
#else
    void *found = dlsym(runtime, name);
#endif
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

#define CALL(name, types, ...) printf(#name " %d\n", ((int(*) types)find(#name))(__VA_ARGS__))

static void info(void) {
    size_t free = 0, total = 0;
    int status = ((int (*)(size_t *, size_t *))find("cudaMemGetInfo"))(&free, &total);
    printf("cudaMemGetInfo %d %zu %zu\n", status, free, total);
}

int main(int count, char **arguments) {
    runtime = dlopen(count > 1 ? arguments[1] : NULL, RTLD_NOW);
    if (!runtime) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    // cudaDeviceProp: 256 bytes of name, 16 of UUID, 8 of LUID, 4 of mask, then totalGlobalMem.
    static char properties[8192];
    const char *name = count > 1 && strstr(arguments[1], ".so.12") ? "cudaGetDeviceProperties_v2"
                                                                   : "cudaGetDeviceProperties";
    int status = ((int (*)(void *, int))find(name))(properties, 0);
    size_t total;
    memcpy(&total, properties + 288, sizeof total);
    printf("cudaGetDeviceProperties %d %zu\n", status, total);
    void *one, *two;
    info();
    CALL(cudaMalloc, (void **, size_t), &one, 1000 * MIB);
    info();
    CALL(cudaMalloc, (void **, size_t), &two, 1000 * MIB);
    CALL(cudaMallocAsync, (void **, size_t, void *), &two, 1000 * MIB, NULL);
    CALL(cudaMallocAsync, (void **, size_t, void *), &two, 100 * MIB, NULL);
    CALL(cudaFreeAsync, (void *, void *), two, NULL);
    CALL(cudaStreamSynchronize, (void *), NULL);
    CALL(cudaFree, (void *), one);
    info();
    // cudaChannelFormatDesc of four floats. cudaExtent is passed by value.
    struct {
        int bits[4], kind;
    } float4 = {{32, 32, 32, 32}, 2};
    struct extent {
        size_t width, height, depth;
    } cube = {100, 100, 100}, square = {4096, 1024, 0}, huge = {5000, 3000, 9};
    void *flat, *deep, *chain, *more;
    CALL(cudaMallocArray, (void **, void *, size_t, size_t, unsigned), &flat, &float4, 5000, 3000,
         0);
    CALL(cudaMalloc3DArray, (void **, void *, struct extent, unsigned), &deep, &float4, cube, 0);
    CALL(cudaMallocMipmappedArray, (void **, void *, struct extent, unsigned, unsigned), &chain,
         &float4, square, 4, 0);
    info();
    CALL(cudaMalloc3DArray, (void **, void *, struct extent, unsigned), &more, &float4, huge, 1);
    CALL(cudaFreeArray, (void *), flat);
    CALL(cudaFreeArray, (void *), deep);
    CALL(cudaFreeMipmappedArray, (void *), chain);
    info();
    size_t pitch;
    CALL(cudaMallocPitch, (void **, size_t *, size_t, size_t), &one, &pitch, MIB, 1600);
    CALL(cudaMallocManaged, (void **, size_t, unsigned), &one, 1600 * MIB, 1);
    CALL(cudaMallocManaged, (void **, size_t, unsigned), &one, 100 * MIB, 1);
    info();
    CALL(cudaFree, (void *), one);
    // cudaMemPoolProps: pinned memory on GPU 0.
    union {
        int words[22];
        char size[88];
    } props = {{1, 0, 1, 0}};
    void *pool;
    CALL(cudaMemPoolCreate, (void **, void *), &pool, &props);
    CALL(cudaMallocFromPoolAsync, (void **, size_t, void *, void *), &one, 1600 * MIB, pool, NULL);
    CALL(cudaMemPoolDestroy, (void *), pool);
    // cudaMemAllocNodeParams.
    struct {
        char props[88];
        void *access;
        size_t count, bytes;
        void *address;
    } node = {.bytes = 1600 * MIB};
    memcpy(node.props, &props, sizeof node.props);
    void *graph, *added, *ready;
    CALL(cudaGraphCreate, (void **, unsigned), &graph, 0);
    CALL(cudaGraphAddMemAllocNode, (void **, void *, void *, size_t, void *), &added, graph, NULL,
         0, &node);
    CALL(cudaGraphInstantiateWithFlags, (void **, void *, unsigned long long), &ready, graph, 0);
    CALL(cudaGraphLaunch, (void *, void *), ready, NULL);
    CALL(cudaGraphExecDestroy, (void *), ready);
    info();
    CALL(cudaMalloc, (void **, size_t), &one, 1490 * MIB);
    CALL(cudaDeviceReset, (void));
    return 0;
}

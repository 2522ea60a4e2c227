// A tool, such as a profiler, that the driver loads (CUDA_INJECTION64_PATH) and calls at the begin
// and the end of each call. At the function TOOL_AT it takes and frees all memory that it gets, and
// writes to TOOL_REPORT what it has seen; at "*" it takes and frees a little, in many ways.
#include "gpu.h"

static const char *at;

#define CALL(name, types, ...)                                                                     \
    ({                                                                                             \
        static int(*call) types;                                                                   \
        if (!call)                                                                                 \
            *(void **)&call = gpu_find(#name, NULL);                                               \
        call(__VA_ARGS__);                                                                         \
    })

static size_t total(size_t *unused) {
    size_t all = 0;
    if (CALL(cuMemGetInfo_v2, (size_t *, size_t *), unused, &all))
        return 0;
    return all;
}

static void fill(const char *function, int is_end) {
    address pieces[1000];
    size_t before, after, again;
    int count = 0;
    if (!total(&before))
        return;
    while (count < 1000 &&
           !CALL(cuMemAlloc_v2, (address *, size_t), &pieces[count], 5 * MIB))
        count++;
    size_t all = total(&after);
    for (int freed = 0; freed < count; freed++)
        if (CALL(cuMemFree_v2, (address), pieces[freed]))
            abort();
    total(&again);
    char line[256];
    int length = snprintf(line, sizeof line, "%s %d %d %zu %zu %zu %zu\n", function, is_end,
                          count * 5, all / MIB, before / MIB, after / MIB, again / MIB);
    FILE *report = fopen(getenv("TOOL_REPORT"), "a");
    if (!report || fwrite(line, length, 1, report) != 1 || fclose(report))
        abort();
}

static void little(void) {
    size_t unused;
    address one = 0, two = 0, three = 0;
    void *stream = 0, *graph = 0, *pool = 0, *context = 0;
    if (!total(&unused))
        return;
    if (!CALL(cuMemAlloc_v2, (address *, size_t), &one, 1000))
        CALL(cuMemFree_v2, (address), one);
    if (!CALL(cuMemAlloc_v2, (address *, size_t), &two, 3 * MIB))
        CALL(cuMemFree_v2, (address), two);
    if (!CALL(cuMemAllocAsync, (address *, size_t, void *), &three, MIB, NULL))
        CALL(cuMemFreeAsync, (address, void *), three, NULL);
    CALL(cuStreamSynchronize, (void *), NULL);
    if (!CALL(cuDeviceGetDefaultMemPool, (void **, int), &pool, 0))
        CALL(cuMemPoolTrimTo, (void *, size_t), pool, 0);
    if (!CALL(cuGraphCreate, (void **, unsigned), &graph, 0))
        CALL(cuGraphDestroy, (void *), graph);
    CALL(cuDeviceGraphMemTrim, (int), 0);
    if (!CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0))
        CALL(cuDevicePrimaryCtxRelease_v2, (int), 0);
    static int streams;
    if (streams++ < 10 && !CALL(cuStreamCreate, (void **, unsigned), &stream, 0))
        CALL(cuStreamDestroy_v2, (void *), stream);
}

static void callback(const char *function, int is_end) {
    if (!strcmp(at, "*"))
        little();
    else if (!strcmp(at, function))
        fill(function, is_end);
}

int InitializeInjection(void) {
    at = getenv("TOOL_AT");
    void (*subscribe)(void (*)(const char *, int));
    *(void **)&subscribe = gpu_find("gpulimitSimSubscribe", NULL);
    subscribe(callback);
    return 1;
}

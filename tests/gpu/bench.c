// The cost of calls of the driver as it is (with or without a preload), without any framework.
//
//   bench start    cuInit, a primary context, exit: timed from outside as a whole process
//   bench calls    for each line of input, a batch of the first kind of call, and "@{json}" with
//                  its nanoseconds per pair or per call; a line that contains "next" goes on to the
//                  next kind, so two of these programs can take turns of some milliseconds
//   bench threads  the same for event queries in 1, 2 and 16 threads at the same time, each with an
//                  event of its own; the nanoseconds are the mean of the threads
//
// The program needs only dlopen and dlsym, so one build serves every machine. The prototypes are
// those of the CUDA driver API.

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long address;
typedef void *handle;

static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "bench: the driver has no %s\n", name);
        exit(3);
    }
    return found;
}

static void must(int status, const char *what) {
    if (status) {
        fprintf(stderr, "bench: %s answered %d\n", what, status);
        exit(3);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

// Returns whether another batch is wanted.
static int wanted(void) {
    char line[256];
    return fgets(line, sizeof line, stdin) && !strstr(line, "next");
}

// Measures batches of `times` runs of `body`, each after a shorter batch that warms up.
#define MEASURE(name, times, body)                                                                 \
    while (wanted()) {                                                                             \
        double begin = 0;                                                                          \
        for (int i = -(times) / 10; i < (times); i++) {                                            \
            if (i == 0) begin = now();                                                             \
            body;                                                                                  \
        }                                                                                          \
        printf("@{\"name\": \"%s\", \"ns\": %.1f}\n", name, (now() - begin) / (times));            \
        fflush(stdout);                                                                            \
    }

enum { QUERIES = 10000, MOST_THREADS = 16 };
static int (*set_current)(handle), (*event_create)(handle *, unsigned), (*query)(handle);
static handle context, events[MOST_THREADS];
static pthread_barrier_t ready;

static void *ask(void *event) {
    must(set_current(context), "cuCtxSetCurrent");
    double begin = 0;
    for (int i = -QUERIES / 10; i < QUERIES; i++) {
        if (i == 0) pthread_barrier_wait(&ready), begin = now();
        must(query(event), "cuEventQuery");
    }
    double *ns = malloc(sizeof *ns);
    *ns = (now() - begin) / QUERIES;
    return ns;
}

static void measure_threads(int threads) {
    while (wanted()) {
        pthread_t started[MOST_THREADS];
        double sum = 0;
        pthread_barrier_init(&ready, NULL, threads);
        for (int i = 0; i < threads; i++) pthread_create(&started[i], NULL, ask, events[i]);
        for (int i = 0; i < threads; i++) {
            void *ns;
            pthread_join(started[i], &ns);
            sum += *(double *)ns;
            free(ns);
        }
        pthread_barrier_destroy(&ready);
        printf("@{\"name\": \"event_query_%d\", \"ns\": %.1f}\n", threads, sum / threads);
        fflush(stdout);
    }
}

static const char *const EMPTY_KERNEL =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

int main(int argc, char **argv) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "bench: %s\n", dlerror());
        return 3;
    }
    int (*init)(unsigned) = symbol("cuInit");
    int (*retain)(handle *, int) = symbol("cuDevicePrimaryCtxRetain");
    set_current = symbol("cuCtxSetCurrent");
    event_create = symbol("cuEventCreate");
    query = symbol("cuEventQuery");
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
    if (argc == 2 && !strcmp(argv[1], "threads")) {
        for (int i = 0; i < MOST_THREADS; i++) must(event_create(&events[i], 0), "cuEventCreate");
        measure_threads(1);
        measure_threads(2);
        measure_threads(16);
    }
    if (argc < 2 || strcmp(argv[1], "calls")) return 0;

    int (*alloc)(address *, size_t) = symbol("cuMemAlloc_v2");
    int (*give)(address) = symbol("cuMemFree_v2");
    int (*alloc_async)(address *, size_t, handle) = symbol("cuMemAllocAsync");
    int (*give_async)(address, handle) = symbol("cuMemFreeAsync");
    int (*default_pool)(handle *, int) = symbol("cuDeviceGetDefaultMemPool");
    int (*pool_set)(handle, int, void *) = symbol("cuMemPoolSetAttribute");
    int (*info)(size_t *, size_t *) = symbol("cuMemGetInfo_v2");
    int (*stream_create)(handle *, unsigned) = symbol("cuStreamCreate");
    int (*load)(handle *, const void *) = symbol("cuModuleLoadData");
    int (*function)(handle *, handle, const char *) = symbol("cuModuleGetFunction");
    int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  handle, void **, void **) = symbol("cuLaunchKernel");
    int (*synchronise)(void) = symbol("cuCtxSynchronize");
    int (*capture)(handle, int) = symbol("cuStreamBeginCapture_v2");
    int (*captured)(handle, handle *) = symbol("cuStreamEndCapture");
    int (*instantiate)(handle *, handle, unsigned long long) =
        symbol("cuGraphInstantiateWithFlags");
    int (*replay)(handle, handle) = symbol("cuGraphLaunch");
    address block, hold;
    handle stream, pool, module, kernel, graph, exec, event;
    size_t left, total;

    must(stream_create(&stream, 1), "cuStreamCreate");
    // More than a block, since the spare block would serve a single one.
    MEASURE("new_block_pair", 40,
            (must(alloc(&block, 4 << 20), "cuMemAlloc"), must(give(block), "cuMemFree")));

    must(alloc(&hold, 4096), "cuMemAlloc");
    MEASURE("in_block_pair_1", 2000,
            (must(alloc(&block, 4096), "cuMemAlloc"), must(give(block), "cuMemFree")));
    enum { MANY = 50000 };
    static address many[MANY];
    for (int i = 0; i < MANY; i++) must(alloc(&many[i], 4096), "cuMemAlloc");
    // One in the middle is freed, so that the pair finds room in a held block.
    must(give(many[MANY / 2]), "cuMemFree");
    MEASURE("in_block_pair_50000", 2000,
            (must(alloc(&block, 4096), "cuMemAlloc"), must(give(block), "cuMemFree")));
    for (int i = 0; i < MANY; i++)
        if (i != MANY / 2) must(give(many[i]), "cuMemFree");

    unsigned long long keep = ~0ull;
    must(default_pool(&pool, 0), "cuDeviceGetDefaultMemPool");
    must(pool_set(pool, 4, &keep), "cuMemPoolSetAttribute(release threshold)");
    MEASURE("async_pair", 2000,
            (must(alloc_async(&block, 1 << 20, stream), "cuMemAllocAsync"),
             must(give_async(block, stream), "cuMemFreeAsync")));
    must(synchronise(), "cuCtxSynchronize");

    MEASURE("mem_get_info", 300, must(info(&left, &total), "cuMemGetInfo"));

    must(load(&module, EMPTY_KERNEL), "cuModuleLoadData");
    must(function(&kernel, module, "nothing"), "cuModuleGetFunction");
    // Short batches with a synchronise call between them never measure a full launch queue.
    MEASURE("launch", 200, {
        must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
        if (i == 199) must(synchronise(), "cuCtxSynchronize");
    });

    must(event_create(&event, 0), "cuEventCreate");
    MEASURE("event_query", 2000, must(query(event), "cuEventQuery"));

    // 2 is CU_STREAM_CAPTURE_MODE_RELAXED.
    must(capture(stream, 2), "cuStreamBeginCapture");
    for (int i = 0; i < 100; i++)
        must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    must(captured(stream, &graph), "cuStreamEndCapture");
    must(instantiate(&exec, graph, 0), "cuGraphInstantiate");
    MEASURE("graph_replay_100", 50, {
        must(replay(exec, stream), "cuGraphLaunch");
        if (i == 49) must(synchronise(), "cuCtxSynchronize");
    });
    return 0;
}

// A cancelled thread calls the driver: cancelled CALL. Prints how the thread ended, and whether
// memory can be allocated afterwards.
//
// The calls are those of tests/driver/src/cancel.rs; without a CALL the program lists them.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
#define CUDA(name, types) ((int(*) types)find(#name))

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry slow(){\n.reg .u64 %r<4>;\n.reg .pred %p<2>;\n"
    "mov.u64 %r1, %clock64;\nL: mov.u64 %r2, %clock64;\nsub.u64 %r3, %r2, %r1;\n"
    "setp.lt.u64 %p1, %r3, 600000000;\n@%p1 bra L;\nret;\n}\n";
// Calls from `first_busy` on are made while a kernel runs in a context that sleeps while it waits.
static const char *calls[] = {"create",      "retain",      "destroy",   "load",
                              "async",       "alloc",       "free",      "stream",
                              "limit",       "managed",     "unload",    "busy-context",
                              "busy-stream", "busy-event",  "busy-free", "busy-unload",
                              "busy-destroy"};
static const int first_busy = 11, count_of_calls = sizeof calls / sizeof *calls;
static const int sleeps = 4; // CU_CTX_SCHED_BLOCKING_SYNC

static const char *call;
static void *context, *module, *stream, *event;
static address held;

static void *find(const char *name) {
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return found;
}

static void must(const char *what, int status) {
    if (status) {
        printf("%s answered %d\n", what, status);
        exit(3);
    }
}

static int is(const char *name) {
    return !strcmp(call, name) || (!strncmp(call, "busy-", 5) && !strcmp(call + 5, name));
}

static void *cancelled(void *nothing) {
    void *made;
    address pointer;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    must("cuCtxSetCurrent", CUDA(cuCtxSetCurrent, (void *))(context));
    pthread_cancel(pthread_self());
    // The functions are looked up before the cancellation, since the dynamic linker reads files.
    int (*create)(void **, unsigned, int) = CUDA(cuCtxCreate_v2, (void **, unsigned, int));
    int (*retain)(void **, int) = CUDA(cuDevicePrimaryCtxRetain, (void **, int));
    int (*destroy)(void *) = CUDA(cuCtxDestroy_v2, (void *));
    int (*load)(void **, const char *) = CUDA(cuModuleLoadData, (void **, const char *));
    int (*unload)(void *) = CUDA(cuModuleUnload, (void *));
    int (*async)(address *, size_t, void *) = CUDA(cuMemAllocAsync, (address *, size_t, void *));
    int (*alloc)(address *, size_t) = CUDA(cuMemAlloc_v2, (address *, size_t));
    int (*release)(address) = CUDA(cuMemFree_v2, (address));
    int (*managed)(address *, size_t, unsigned) =
        CUDA(cuMemAllocManaged, (address *, size_t, unsigned));
    int (*limit)(int, size_t) = CUDA(cuCtxSetLimit, (int, size_t));
    int (*queue)(void **, unsigned) = CUDA(cuStreamCreate, (void **, unsigned));
    int (*wait)(void) = CUDA(cuCtxSynchronize, (void));
    int (*wait_stream)(void *) = CUDA(cuStreamSynchronize, (void *));
    int (*wait_event)(void *) = CUDA(cuEventSynchronize, (void *));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    if (is("create"))
        create(&made, 0, 0);
    else if (is("retain"))
        retain(&made, 0);
    else if (is("destroy"))
        destroy(context);
    else if (is("load"))
        load(&made, ptx);
    else if (is("async"))
        async(&pointer, 1 << 20, NULL);
    else if (is("alloc"))
        alloc(&pointer, 64 << 20);
    else if (is("free"))
        release(held);
    else if (is("stream") && *call == 's')
        queue(&made, 1);
    else if (is("limit"))
        limit(0, 16384);
    else if (is("managed"))
        managed(&pointer, 4 << 20, 1);
    else if (is("unload"))
        unload(module);
    else if (is("context"))
        wait();
    else if (is("stream"))
        wait_stream(stream);
    else if (is("event"))
        wait_event(event);
    pthread_testcancel();
    return nothing;
}

int main(int count, char **arguments) {
    pthread_t thread;
    void *end, *other, *function;
    address pointer;
    int at, busy = 0;
    if (count < 2) {
        for (at = 0; at < count_of_calls; at++) puts(calls[at]);
        return 0;
    }
    call = arguments[1];
    for (at = first_busy; at < count_of_calls; at++) busy |= !strcmp(call, calls[at]);
    must("cuInit", CUDA(cuInit, (unsigned))(0));
    must("cuCtxCreate",
         CUDA(cuCtxCreate_v2, (void **, unsigned, int))(&context, busy ? sleeps : 0, 0));
    must("cuStreamCreate", CUDA(cuStreamCreate, (void **, unsigned))(&stream, 1));
    must("cuEventCreate", CUDA(cuEventCreate, (void **, unsigned))(&event, busy));
    must("cuModuleLoadData", CUDA(cuModuleLoadData, (void **, const char *))(&module, ptx));
    must("cuModuleGetFunction",
         CUDA(cuModuleGetFunction, (void **, void *, const char *))(&function, module, "slow"));
    must("cuMemAlloc", CUDA(cuMemAlloc_v2, (address *, size_t))(&held, 4096));
    if (busy) {
        must("cuLaunchKernel",
             CUDA(cuLaunchKernel,
                  (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **))(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        must("cuEventRecord", CUDA(cuEventRecord, (void *, void *))(event, stream));
    }
    pthread_create(&thread, NULL, cancelled, NULL);
    pthread_join(thread, &end);
    printf("%s\n", end == PTHREAD_CANCELED ? "ended" : "went on");
    // Another context is used, since the thread may have left the first one half destroyed.
    must("cuCtxCreate", CUDA(cuCtxCreate_v2, (void **, unsigned, int))(&other, 0, 0));
    must("cuMemAlloc", CUDA(cuMemAlloc_v2, (address *, size_t))(&pointer, 1 << 20));
    puts("alloc 0");
    fflush(stdout);
    _Exit(0);
}

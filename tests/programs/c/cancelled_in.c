// A thread that was cancelled before a call of the driver: cancelled_in CALL. It ends in the call,
// or at the next cancellation point after it. The context sleeps while it waits.
#include "gpu.h"
#include <pthread.h>

// CU_CTX_SCHED_BLOCKING_SYNC
#define SLEEPS 4

static const char *call;
static void *other;
static address held;

static void *cancelled(void *nothing) {
    void *made;
    address pointer;
    gpu_use();
    pthread_cancel(pthread_self());
    if (!strcmp(call, "create"))
        GPU_LATE(cuCtxCreate_v2, (void **, unsigned, int))(&made, 0, 0);
    else if (!strcmp(call, "retain"))
        GPU(cuDevicePrimaryCtxRetain, (void **, int))(&made, 0);
    else if (!strcmp(call, "destroy"))
        GPU_LATE(cuCtxDestroy_v2, (void *))(other);
    else if (!strcmp(call, "load"))
        GPU_LATE(cuModuleLoadData,
                 (void **, const char *))(&made, ".version 8.0\n.visible .entry one() { ret; }\n");
    else if (!strcmp(call, "async"))
        GPU_LATE(cuMemAllocAsync, (address *, size_t, void *))(&pointer, MIB, NULL);
    else if (!strcmp(call, "synchronize"))
        GPU_LATE(cuCtxSynchronize, (void))();
    else if (!strcmp(call, "synchronize-stream"))
        GPU_LATE(cuStreamSynchronize, (void *))(NULL);
    else if (!strcmp(call, "free"))
        gpu_free(held);
    pthread_testcancel();
    say("not ended");
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    void *end;
    int round;
    call = arguments[1];
    GPU(cuInit, (unsigned))(0);
    GPU_LATE(cuDevicePrimaryCtxSetFlags_v2, (int, unsigned))(0, SLEEPS);
    say("start %d", gpu_start());
    for (round = 0; round < 3; round++) {
        held = gpu_alloc(3);
        if (!strcmp(call, "destroy"))
            say("create %d", GPU_LATE(cuCtxCreate_v2, (void **, unsigned, int))(&other, 0, 0));
        gpu_use();
        pthread_create(&thread, NULL, cancelled, NULL);
        pthread_join(thread, &end);
        say("ended %d", end == PTHREAD_CANCELED);
    }
    say("alloc %d", gpu_alloc(100) != 0);
    hold();
    gpu_fill();
    return 0;
}

// Threads that end while others allocate, and that free their memory in destructors of
// thread-specific data.
#include "gpu.h"
#include <pthread.h>

static pthread_key_t key;
static int failed;

static void gone(void *had) {
    // The destructor also uses the C library's memory: the library's data for the thread may be
    // gone by now.
    free(malloc(100));
    address more = gpu_alloc(1);
    if (!more || gpu_free(more) || gpu_free((address)(size_t)had))
        __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
}

static void *work(void *number) {
    gpu_use();
    address mine = gpu_alloc(3);
    pthread_setspecific(key, (void *)(size_t)mine);
    for (int round = 0; round < 20; round++) {
        address more = gpu_alloc(round % 3);
        if (more)
            gpu_free(more);
    }
    if (!mine || (size_t)number % 2)
        pthread_exit(NULL);
    return NULL;
}

int main(void) {
    pthread_key_create(&key, gone);
    say("start %d", gpu_start());
    for (int wave = 0; wave < 5; wave++) {
        pthread_t threads[16];
        for (size_t at = 0; at < 16; at++)
            pthread_create(&threads[at], NULL, work, (void *)at);
        for (int at = 0; at < 16; at++)
            pthread_join(threads[at], NULL);
    }
    gpu_fill();
    say("failed %d", failed);
    hold();
    // These threads run while the process ends.
    for (size_t at = 0; at < 8; at++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)at);
        pthread_detach(thread);
    }
    return 0;
}

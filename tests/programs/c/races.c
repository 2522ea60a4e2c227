// Threads that make and free allocations of their own: no race.
#include "gpu.h"
#include <pthread.h>

#define COUNT 64
#define THREADS 4

static void *work(void *nothing) {
    address all[COUNT];
    gpu_use();
    for (int round = 0; round < 20; round++) {
        for (int at = 0; at < COUNT; at++)
            all[at] = gpu_alloc(3 + at % 5);
        for (int at = 0; at < COUNT; at++)
            gpu_free(all[at * 7 % COUNT]);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    say("start %d", gpu_start());
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, work, NULL);
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    return 0;
}

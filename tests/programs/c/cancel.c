// Threads that are cancelled while they ask for memory, with room and without.
#include "gpu.h"
#include <pthread.h>

static int started;

static void *work(void *size) {
    gpu_use();
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    for (;;) {
        address more = gpu_alloc((size_t)size);
        if (more)
            gpu_free(more);
        // Memory held when the thread ends would be lost, so the thread may end only here.
        pthread_testcancel();
    }
    return NULL;
}

int main(void) {
    say("start %d", gpu_start());
    int cancelled = 0;
    for (int round = 0; round < 30; round++) {
        pthread_t thread;
        void *end;
        int before = __atomic_load_n(&started, __ATOMIC_RELAXED);
        pthread_create(&thread, NULL, work, (void *)(size_t)(round % 2 ? 3 : 1 << 20));
        while (__atomic_load_n(&started, __ATOMIC_RELAXED) == before)
            usleep(50);
        usleep(round * 100);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        cancelled += end == PTHREAD_CANCELED;
    }
    say("cancelled %d", cancelled);
    hold();
    gpu_fill();
    return 0;
}

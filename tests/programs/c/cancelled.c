// Threads that were cancelled before their first use of the GPU or before a refusal: they end at
// the next cancellation point.
#include "gpu.h"
#include <pthread.h>

static void *first(void *nothing) {
    pthread_cancel(pthread_self());
    int status = gpu_start();
    address had = gpu_alloc(1 << 20);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    say("not ended %d %d", status, had != 0);
    return NULL;
}

static void *refused(void *nothing) {
    gpu_use();
    pthread_cancel(pthread_self());
    address had = gpu_alloc(1 << 20);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    say("refused %d", had == 0);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    if (count == 1)
        say("start %d", gpu_start());
    pthread_create(&thread, NULL, count > 1 ? first : refused, NULL);
    pthread_join(thread, NULL);
    say("start %d", gpu_start());
    address had = gpu_alloc(100);
    say("alloc %d", had != 0);
    gpu_fill();
    hold();
    return 0;
}

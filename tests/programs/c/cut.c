// Threads allocate and free memory until every request is refused; then the program makes a child,
// and ends.
#include "gpu.h"
#include <pthread.h>
#include <sys/wait.h>

#define THREADS 4

static volatile int freed_wrong;

static void *work(void *unused) {
    int refused = 0;
    gpu_use();
    // After 50 refusals in a row other threads cannot be the reason.
    while (refused < 50) {
        address some = gpu_alloc(10);
        refused = some ? 0 : refused + 1;
        if (some)
            freed_wrong |= gpu_free(some);
        else
            usleep(10000);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int status = gpu_start();
    address held = gpu_alloc(100);
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, work, NULL);
    hold();
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    say("start %d freed %d held %d", status, freed_wrong, gpu_free(held));
    pid_t child = fork();
    if (!child)
        _exit(gpu_start() || gpu_alloc(10) ? 1 : 0);
    waitpid(child, &status, 0);
    say("child %x", status);
    return 0;
}

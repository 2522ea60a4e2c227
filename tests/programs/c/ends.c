// A thread ends in a signal handler that has interrupted its allocation, and the program goes on.
#include "gpu.h"
#include <pthread.h>
#include <signal.h>

static void end(int number) { pthread_exit(NULL); }

static void *ask(void *mib) {
    gpu_use();
    say("got %d", gpu_alloc((size_t)mib) != 0);
    return NULL;
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGALRM, &action, NULL);
    say("start %d", gpu_start());
    pthread_t thread;
    pthread_create(&thread, NULL, ask, (void *)(size_t)atoi(arguments[1]));
    hold();
    pthread_kill(thread, SIGALRM);
    pthread_join(thread, NULL);
    say("ended");
    hold();
    address mine = gpu_alloc(100);
    say("free %d", mine ? gpu_free(mine) : -1);
    return 0;
}

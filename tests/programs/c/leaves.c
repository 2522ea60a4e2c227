// Ends in the named way while it holds memory, with handlers that use the GPU.
#include "gpu.h"
#include <pthread.h>
#include <signal.h>

static address held;

static void give_back(const char *where) {
    // The driver may have ended by now: its answer is the same with and without gpulimit.
    say("%s %d %d", where, gpu_free(held), gpu_alloc(10) != 0);
    gpu_fill();
}

static void at_exit(void) { give_back("atexit"); }
static void at_quick(void) { give_back("at_quick_exit"); }

__attribute__((destructor)) static void after(void) { say("destructor %d", gpu_alloc(10) != 0); }

static void *end(void *how) {
    gpu_use();
    if (!strcmp(how, "thread"))
        exit(5);
    usleep(20000);
    say("still there %d", gpu_alloc(20) != 0);
    hold();
    exit(6);
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "return";
    if (!strcmp(how, "early"))
        atexit(at_exit); // registered before the driver's own handler
    say("start %d", gpu_start());
    held = gpu_alloc(200);
    gpu_fill();
    if (strcmp(how, "early"))
        atexit(at_exit);
    at_quick_exit(at_quick);
    hold();
    pthread_t thread;
    if (!strcmp(how, "_exit"))
        _exit(3);
    if (!strcmp(how, "quick_exit"))
        quick_exit(4);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    if (!strcmp(how, "crash"))
        *(volatile int *)8 = 0;
    if (!strcmp(how, "thread") || !strcmp(how, "pthread_exit")) {
        pthread_create(&thread, NULL, end, (void *)how);
        if (!strcmp(how, "thread"))
            pthread_join(thread, NULL);
        pthread_exit(NULL);
    }
    return 2;
}

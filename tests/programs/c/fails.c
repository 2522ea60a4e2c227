// Is refused memory, and ends by exit.
// fails child: refused itself, and a forked child ends with status 5
// fails handler: refused in the handlers of signals, beside a thread that is refused; status 3
#include "gpu.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define TOO_MUCH (100000 * MIB)

static int (*alloc)(address *, size_t);
static volatile sig_atomic_t refusals;

static void handler(int signal) {
    address pointer;
    (void)signal;
    if (alloc(&pointer, TOO_MUCH) == 2)
        refusals++;
}

static void *refused(void *unused) {
    address pointer;
    (void)unused;
    for (int i = 0; i < 200; i++)
        if (gpu_use() || alloc(&pointer, TOO_MUCH) != 2)
            exit(95);
    return NULL;
}

int main(int count, char **words) {
    if (count < 2 || gpu_start())
        return 99;
    alloc = GPU(cuMemAlloc_v2, (address *, size_t));
    address pointer;
    if (alloc(&pointer, TOO_MUCH) != 2)
        return 98;
    if (!strcmp(words[1], "child")) {
        int status;
        pid_t child = fork();
        if (child == 0)
            exit(5);
        return waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5 ? 0 : 97;
    }
    pthread_t thread;
    signal(SIGUSR1, handler);
    if (pthread_create(&thread, NULL, refused, NULL))
        return 96;
    for (int i = 0; i < 200; i++)
        raise(SIGUSR1);
    pthread_join(thread, NULL);
    return refusals == 200 ? 3 : 94;
}

// Makes children in every way while its threads allocate: fork with and without exec, vfork,
// posix_spawn, system, clone.
#include "gpu.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;
static int stop, mistakes;

static void *work(void *nothing) {
    gpu_use();
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        address more = gpu_alloc(3);
        if (!more || gpu_free(more))
            __atomic_fetch_add(&mistakes, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static int end_of(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, __WALL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static char *self;
static char *const TRUE[] = {"true", NULL};

// The child has a thread area and a stack of the parent's, as after vfork, but runs beside the
// parent.
static int beside(void *mine) { _exit(*(address *)mine != 0 ? 7 : 8); }

static pid_t make(const char *how, address *held) {
    static char stack[1 << 18] __attribute__((aligned(16)));
    char *const again[] = {self, "child", NULL};
    pid_t pid = 0;
    if (!strcmp(how, "fork")) {
        if (!(pid = fork()))
            _exit(7);
    } else if (!strcmp(how, "forked")) {
        // The driver refuses calls of a forked child with its own code.
        if (!(pid = fork()))
            _exit(gpu_alloc(1) == 0 ? 7 : 8);
    } else if (!strcmp(how, "exec")) {
        if (!(pid = fork()))
            execv(self, again);
    } else if (!strcmp(how, "vfork")) {
        if (!(pid = vfork()))
            _exit(7);
    } else if (!strcmp(how, "vfork-exec")) {
        if (!(pid = vfork())) {
            execv(self, again);
            _exit(1);
        }
    } else if (!strcmp(how, "spawn")) {
        posix_spawnp(&pid, "true", NULL, NULL, TRUE, environ);
    } else if (!strcmp(how, "spawn-again")) {
        posix_spawn(&pid, self, NULL, NULL, again, environ);
    } else if (!strcmp(how, "clone")) {
        // This call bypasses the C library, which does not notice the child.
        if (!(pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)))
            syscall(SYS_exit_group, 7);
    } else if (!strcmp(how, "cloned")) {
        if (!(pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)))
            syscall(SYS_exit_group, gpu_alloc(1) == 0 ? 7 : 8);
    } else if (!strcmp(how, "clone-vm")) {
        pid = clone(beside, stack + sizeof stack, CLONE_VM | SIGCHLD, held);
    } else if (!strcmp(how, "clone-files")) {
        pid = clone(beside, stack + sizeof stack,
                    CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_VFORK | SIGCHLD, held);
    }
    return pid;
}

int main(int count, char **arguments) {
    self = "/proc/self/exe";
    if (count > 1) {
        // A new program in a child is a member of its own.
        int status = gpu_start();
        address mine = gpu_alloc(20);
        return !status && mine ? 7 : 8;
    }
    say("start %d", gpu_start());
    address held = gpu_alloc(100);
    // No thread may hold a lock now, since such a child would never get it.
    say("cloned %d", end_of(make("cloned", &held)));
    pthread_t threads[3];
    for (int at = 0; at < 3; at++)
        pthread_create(&threads[at], NULL, work, NULL);
    static const char *const ways[] = {"fork",  "forked",      "exec",  "vfork",    "vfork-exec",
                                       "spawn", "spawn-again", "clone", "clone-vm", "clone-files"};
    for (size_t at = 0; at < sizeof ways / sizeof *ways; at++)
        for (int round = 0; round < 2; round++)
            say("%s %d", ways[at], end_of(make(ways[at], &held)));
    say("system %d", system("true"));
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int at = 0; at < 3; at++)
        pthread_join(threads[at], NULL);
    say("mistakes %d", mistakes);
    hold();
    gpu_fill();
    say("free %d", gpu_free(held));
    hold();
    return 0;
}

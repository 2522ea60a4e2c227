// Uses the GPU, then moves to where its files are not: another user, another root, other
// namespaces.
#include "gpu.h"
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int move(const char *how) {
    if (!strcmp(how, "setuid"))
        return setgroups(0, NULL) | setgid(65534) | setuid(65534);
    if (!strcmp(how, "chroot"))
        return chroot("/proc/self/fdinfo") | chdir("/");
    if (!strcmp(how, "user"))
        return unshare(CLONE_NEWUSER);
    if (!strcmp(how, "mount"))
        return unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET);
    if (!strcmp(how, "pid"))
        return unshare(CLONE_NEWPID);
    if (!strcmp(how, "descriptors")) {
        struct rlimit none = {0, 0};
        return setrlimit(RLIMIT_NOFILE, &none);
    }
    return -1;
}

int main(int count, char **arguments) {
    say("start %d", gpu_start());
    address held = gpu_alloc(100);
    say("moved %d", move(arguments[1]));
    address more = gpu_alloc(50);
    say("alloc %d %d", held != 0, more != 0);
    hold();
    say("too much %d", gpu_alloc(1 << 20) != 0);
    gpu_fill();
    say("free %d", gpu_free(held));
    hold();
    pid_t child = fork();
    if (!child)
        _exit(7);
    int status = 0;
    waitpid(child, &status, 0);
    say("child %d", WEXITSTATUS(status));
    say("free %d", gpu_free(more));
    hold();
    return 0;
}

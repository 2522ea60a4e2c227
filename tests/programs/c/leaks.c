// A program whose forked child calls the driver, too. Both end in a way that leak detectors see.
#include "gpu.h"
#include <sys/wait.h>

int main(void) {
    int status = -1;
    say("start %d", gpu_start());
    say("alloc %d", gpu_alloc(3) != 0);
    pid_t pid = fork();
    if (!pid)
        exit(gpu_alloc(1) == 0 ? 7 : 8);
    waitpid(pid, &status, 0);
    say("child %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    gpu_fill();
    return 0;
}

// Prints what can be seen of a process that uses the GPU: threads, signals, descriptors, umask,
// directory. The process has a name that confuses parsers of /proc.
#include "gpu.h"
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

static int entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

int main(void) {
    prctl(PR_SET_NAME, "a) R 1 2 (b 3");
    umask(022);
    say("start %d", gpu_start());
    address held = gpu_alloc(100);
    char line[256], where[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Sig", 3) || !strncmp(line, "Shd", 3) || !strncmp(line, "Threads", 7) ||
            !strncmp(line, "Umask", 5)) {
            line[strlen(line) - 1] = 0;
            // The library handles this one signal if there is a limit, and only for files that were
            // truncated.
            if (!strncmp(line, "SigCgt", 6))
                sprintf(line + 8, "%016llx",
                        strtoull(line + 8, NULL, 16) & ~(1ULL << (SIGBUS - 1)));
            if (strncmp(line, "SigQ", 4))
                say("%s", line);
        }
    fclose(status);
    say("descriptors %d", entries("/proc/self/fd"));
    say("children %d", entries("/proc/self/task"));
    say("directory %d", getcwd(where, sizeof where) != NULL);
    hold();
    gpu_fill();
    say("free %d", gpu_free(held));
    hold();
    return 0;
}

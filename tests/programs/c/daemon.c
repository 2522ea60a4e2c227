// Becomes a daemon without any descriptor, uses the GPU, and opens files of its own under those
// numbers, with LATE before it uses the GPU. The report goes to the first file, and nothing else
// goes to any of them.
#include "gpu.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void report(int file, const char *what, int value) {
    char line[64];
    int length = snprintf(line, sizeof line, "%s %d\n", what, value);
    if (write(file, line, length) != length)
        _exit(97);
}

int main(int count, char **arguments) {
    int early = getenv("EARLY") ? gpu_start() : -1;
    pid_t first = fork();
    if (first) {
        int status;
        waitpid(first, &status, 0);
        return WEXITSTATUS(status);
    }
    setsid();
    pid_t second = fork();
    if (second) {
        // The parent waits, so that the test knows when the daemon has ended.
        int status;
        waitpid(second, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 96);
    }
    umask(027);
    if (chdir("/"))
        _exit(95);
    for (int descriptor = 0; descriptor < 256; descriptor++)
        close(descriptor);
    int late = getenv("LATE") != NULL, status = late ? 0 : gpu_start();
    // The files get descriptors 0, 1 and 2, unless another part of the program left one open there.
    int files[3];
    for (int at = 0; at < 3; at++)
        files[at] = open(arguments[1 + at], O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (late)
        status = gpu_start();
    report(files[0], "early", early);
    report(files[0], "start", status);
    report(files[0], "descriptors", files[0] * 100 + files[1] * 10 + files[2]);
    address held = gpu_alloc(100);
    report(files[0], "alloc", held != 0);
    report(files[0], "too much", gpu_alloc(1 << 20) != 0);
    gpu_fill();
    report(files[0], "free", gpu_free(held));
    struct stat about;
    fstat(files[0], &about);
    report(files[0], "mode", about.st_mode & 0777);
    return 9;
}

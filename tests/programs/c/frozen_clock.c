// A preload with a wall clock and a monotonic clock that stand still, as libfaketime has them, for
// all but the driver; and with other user ids, as libfakeroot has them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    Dl_info caller = {0};
    dladdr(__builtin_return_address(0), &caller);
    const char *file = caller.dli_fname ? caller.dli_fname : "";
    if (strstr(file, "libcuda.so") || strstr(file, "libnvidia-ml.so"))
        return syscall(SYS_clock_gettime, clock, now);
    *now = (struct timespec){.tv_sec = 1577836800};
    return 0;
}

time_t time(time_t *now) {
    if (now)
        *now = 1577836800;
    return 1577836800;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    *now = (struct timeval){.tv_sec = 1577836800};
    return 0;
}

uid_t getuid(void) { return 4242; }
uid_t geteuid(void) { return 4242; }
gid_t getgid(void) { return 4242; }
gid_t getegid(void) { return 4242; }

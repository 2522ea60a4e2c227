// A program that takes all the memory it can get: prints its C library, and how many pieces of 100
// MiB it got.
#include "gpu.h"
#include <gnu/libc-version.h>

int main(void) {
    int count = 0;
    say("glibc %s", gnu_get_libc_version());
    say("start %d", gpu_start());
    while (gpu_alloc(100))
        count++;
    say("pieces %d", count);
    hold();
    return 0;
}

// A program that says whether it is in secure mode and has our library, and takes 100 MiB of GPU memory at a time until there is no more.
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

static int has_library(void) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "libgpulimit.so") != NULL;
    return found;
}

int main(void) {
    void *context;
    unsigned long long pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    int count = 0, status;
    while (!(status = cuMemAlloc_v2(&pointer, 100 << 20)))
        count++;
    printf("secure %lu library %d blocks %d status %d\n", getauxval(AT_SECURE), has_library(), count, status);
    return 0;
}

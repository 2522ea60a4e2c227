// A program that prints whether it is in secure mode and has the library, and takes 100 MiB of GPU
// memory at a time until it is refused. With -DNAMED it looks the driver's functions up by name and
// is not linked against the driver.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#ifdef NAMED
#define FUNCTION(name, types)                                                                      \
    static int(*find_##name(void)) types {                                                         \
        return (int(*) types)dlsym(dlopen("libcuda.so.1", RTLD_NOW), #name);                       \
    }
#define CALL(name) find_##name()
#else
#define FUNCTION(name, types) int name types;
#define CALL(name) name
#endif

FUNCTION(cuInit, (unsigned flags))
FUNCTION(cuDevicePrimaryCtxRetain, (void **context, int device))
FUNCTION(cuCtxSetCurrent, (void *context))
FUNCTION(cuMemAlloc_v2, (unsigned long long *pointer, size_t bytes))

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
    if (CALL(cuInit)(0) || CALL(cuDevicePrimaryCtxRetain)(&context, 0) ||
        CALL(cuCtxSetCurrent)(context))
        return 1;
    int count = 0, status;
    while (!(status = CALL(cuMemAlloc_v2)(&pointer, 100 << 20)))
        count++;
    printf("secure %lu library %d blocks %d status %d\n", getauxval(AT_SECURE), has_library(),
           count, status);
    return 0;
}

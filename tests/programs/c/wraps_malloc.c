// A preload that wraps malloc in the usual way: it finds the next malloc by dlsym(RTLD_NEXT), which
// must not return this one again.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static void *(*next)(size_t);
static atomic_ulong calls;

void *malloc(size_t bytes) {
    if (!next)
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    if (next == malloc)
        abort();
    atomic_fetch_add(&calls, 1);
    return next(bytes);
}

__attribute__((destructor)) static void report(void) {
    static const char line[] = "wraps_malloc: alive\n";
    // Two calls of dlsym at different times must have the same result.
    if (calls && (void *)next == dlsym(RTLD_NEXT, "malloc"))
        (void)!write(2, line, sizeof line - 1);
}

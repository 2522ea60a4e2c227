// A preload that wraps malloc the usual way: the next one by dlsym(RTLD_NEXT), which must not find
// this one again.
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
    // Twice the same answer, from two places of the program's life.
    if (calls && (void *)next == dlsym(RTLD_NEXT, "malloc"))
        (void)!write(2, line, sizeof line - 1);
}

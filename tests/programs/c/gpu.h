// The driver, through the door that the program is compiled for: -DLINKED (by the dynamic linker),
// -DASKED (linked, all other functions by cuGetProcAddress), -DRUNTIME (as a static libcudart:
// dlopen, cuGetProcAddress by dlsym, all other functions by that), -DNEXT (linked, by RTLD_NEXT),
// otherwise dlsym.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

typedef unsigned long long address;

#if defined(LINKED) || defined(ASKED)
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags,
                        void *status);
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(address *pointer, size_t bytes);
int cuMemFree_v2(address pointer);
int cuMemGetInfo_v2(size_t *unused, size_t *total);
#endif

static void *gpu_context;

#ifdef LINKED
#define NAME(name) #name, (void *)name
#else
#define NAME(name) #name, NULL
#endif

static void *gpu_find(const char *name, void *linked) {
    void *found = linked;
    if (found)
        return found;
#if defined(ASKED) || defined(RUNTIME)
    // libcudart asks by the base name and a version.
    char base[64];
    snprintf(base, sizeof base, "%s", name);
    char *suffix = strstr(base, "_v2");
    if (suffix)
        *suffix = 0;
#ifdef ASKED
    cuGetProcAddress_v2(base, &found, 12010, 0, NULL);
#else
    int (*ask)(const char *, void **, int, unsigned long long, void *);
    *(void **)&ask = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    ask(base, &found, 12010, 0, NULL);
#endif
#elif defined(NEXT)
    found = dlsym(RTLD_NEXT, name);
#else
    found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
#endif
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        abort();
    }
    return found;
}

#define GPU(name, types) ((int(*) types)gpu_find(NAME(name)))

// A function that the programs are not linked against.
#define GPU_LATE(name, types) ((int(*) types)gpu_find(#name, NULL))

// Prints a line in one write, since forked children share the output.
__attribute__((unused, format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(1, line, length) != length)
        _exit(99);
}

// Initialises the driver and makes the primary context current in this thread.
__attribute__((unused)) static int gpu_start(void) {
    int status = GPU(cuInit, (unsigned))(0);
    if (!status)
        status = GPU(cuDevicePrimaryCtxRetain, (void **, int))(&gpu_context, 0);
    return status ? status : GPU(cuCtxSetCurrent, (void *))(gpu_context);
}

__attribute__((unused)) static int gpu_use(void) {
    return GPU(cuCtxSetCurrent, (void *))(gpu_context);
}

// Allocates this many MiB; returns 0 if refused.
__attribute__((unused)) static address gpu_alloc(size_t mib) {
    address pointer = 0;
    int status = GPU(cuMemAlloc_v2, (address *, size_t))(&pointer, mib * MIB);
    return status ? 0 : pointer;
}

__attribute__((unused)) static int gpu_free(address pointer) {
    return GPU(cuMemFree_v2, (address))(pointer);
}

// If the test sets FILL, takes all available memory in pieces of 50 MiB and frees it.
__attribute__((unused)) static void gpu_fill(void) {
    if (!getenv("FILL"))
        return;
    address pieces[200];
    int count = 0;
    while (count < 200 && (pieces[count] = gpu_alloc(50)))
        count++;
    while (count > 0)
        if (gpu_free(pieces[--count]))
            abort();
}

// The test inspects the machine here, and says when to go on.
__attribute__((unused)) static void hold(void) {
    char byte;
    say("hold");
    if (read(0, &byte, 1) != 1)
        _exit(98);
}

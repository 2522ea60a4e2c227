// A library that defines driver functions and is linked before the driver, as MPI libraries are
// (-DLIBRARY), and a program that is linked against both. The library calls the next definition, by
// RTLD_NEXT or (-DASKS) in the driver's library. The program prints how many calls it has made, and
// how many of them the library has seen.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long address;
int interposed(void);

#ifdef LIBRARY
static int seen;

int interposed(void) { return seen; }

static void *next(const char *name) {
#ifdef ASKS
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
#else
    return dlsym(RTLD_NEXT, name);
#endif
}

int cuMemAlloc_v2(address *pointer, size_t bytes) {
    seen++;
    return ((int (*)(address *, size_t))next("cuMemAlloc_v2"))(pointer, bytes);
}

int cuMemFree_v2(address pointer) {
    seen++;
    return ((int (*)(address))next("cuMemFree_v2"))(pointer);
}
#else
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(address *pointer, size_t bytes);
int cuMemFree_v2(address pointer);

int main(void) {
    void *context;
    address pointers[100];
    int count = 0, calls = 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    while (calls++, count < 20 && !cuMemAlloc_v2(&pointers[count], 100 << 20))
        count++;
    // Another look-up of the name finds the same function.
    int (*release)(address);
    *(void **)&release = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
    for (int freed = 0; freed < count; freed++, calls++)
        if ((freed % 2 ? release : cuMemFree_v2)(pointers[freed]))
            return 2;
    printf("%d %d\n", count, calls - (count == 20) - interposed());
    return 0;
}
#endif

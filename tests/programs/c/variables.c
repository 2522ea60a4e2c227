// A library that keeps the driver's functions in global variables of the functions' own names, as
// loaders of the driver do, and the program that uses it (-DPROGRAM): linked, or by its path.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

typedef unsigned long long address;

#ifdef PROGRAM
int main(int count, char **arguments) {
    void *loader = count > 1 ? dlopen(arguments[1], RTLD_NOW) : RTLD_DEFAULT;
    int (*take)(void) = NULL;
    *(void **)&take = dlsym(loader, "loader_take");
    printf("%d\n", take ? take() : -1);
    return 0;
}
#else
int (*cuInit)(unsigned);
int (*cuDevicePrimaryCtxRetain)(void **, int);
int (*cuCtxSetCurrent)(void *);
int (*cuMemAlloc_v2)(address *, size_t);
int (*nvmlInit_v2)(void);

// The linker writes these addresses, too.
static const struct {
    const char *library, *name;
    void **function;
} table[] = {
#define FUNCTION(library, name) {library, #name, (void **)&name}
    FUNCTION("libcuda.so.1", cuInit),
    FUNCTION("libcuda.so.1", cuDevicePrimaryCtxRetain),
    FUNCTION("libcuda.so.1", cuCtxSetCurrent),
    FUNCTION("libcuda.so.1", cuMemAlloc_v2),
    FUNCTION("libnvidia-ml.so.1", nvmlInit_v2),
};

int loader_take(void) {
    void *context = NULL;
    address pointer;
    int taken = 0;
#ifdef LINKED
    if (cuInit || cuMemAlloc_v2 || nvmlInit_v2)
        return -2;
#endif
    for (size_t at = 0; at < sizeof table / sizeof *table; at++) {
        void *driver = dlopen(table[at].library, RTLD_NOW);
        *table[at].function = dlsym(driver, table[at].name);
    }
    if (!cuInit || nvmlInit_v2() || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
        cuCtxSetCurrent(context))
        return -3;
    while (taken < 20 && !cuMemAlloc_v2(&pointer, (size_t)100 << 20))
        taken++;
    return taken;
}
#endif

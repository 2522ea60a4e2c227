// A library that asks for the driver's functions by itself, as libcudart does: `linked` is what its
// own dlsym finds. -DNEXT: it is linked against libcuda and asks for what comes after itself, as
// those do that put functions of their own in the driver's place (UCX).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void *linked(const char *name) {
#ifdef NEXT
    // Not by a jump: the answer depends on who is to be returned to.
    void *volatile found = dlsym(RTLD_NEXT, name);
    return found;
#else
    static void *driver;
    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
#endif
}

// A library that looks up the driver's functions itself, as libcudart does: `linked` returns what
// the library's own dlsym finds. With -DNEXT the library is linked against libcuda and looks names
// up by RTLD_NEXT, as libraries do that replace functions of the driver (UCX).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void *linked(const char *name) {
#ifdef NEXT
    // The call must not be a tail jump, since the answer of dlsym depends on the return address.
    void *volatile found = dlsym(RTLD_NEXT, name);
    return found;
#else
    static void *driver;
    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
#endif
}

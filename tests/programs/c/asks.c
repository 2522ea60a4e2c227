// A library that asks for the driver's functions by itself, as libcudart does: `linked` is what its own dlsym finds.
#include <dlfcn.h>
#include <stddef.h>

void *linked(const char *name) {
    static void *driver;
    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}

// Looks up a driver function without a hook a hundred times, and never loads NVML.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int found = 0;
    for (int look = 0; look < 100; look++)
        found += driver && dlsym(driver, "cuDeviceGetPCIBusId");
    printf("found %d\n", found);
    return 0;
}

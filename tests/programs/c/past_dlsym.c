// Takes the C library's own `dlsym` by its version, as hooking libraries do, and prints which
// library a driver function that it finds is from.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    void *(*find)(void *, const char *) = NULL;
    const char *versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (int at = 0; at < 3 && !find; at++)
        *(void **)&find = dlvsym(RTLD_NEXT, "dlsym", versions[at]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    Dl_info about = {0};
    dladdr(find(driver, "cuMemAlloc_v2"), &about);
    printf("%s\n", strrchr(about.dli_fname, '/') + 1);
    return 0;
}

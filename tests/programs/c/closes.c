// Opens and closes a library that uses the GPU, and then libcuda itself, repeatedly.
#include "gpu.h"

int main(int count, char **arguments) {
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(arguments[1], RTLD_NOW | (round == 1 ? RTLD_GLOBAL : RTLD_LOCAL));
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        int (*holds)(void);
        *(void **)&holds = dlsym(library, "holds");
        say("holds %d", holds());
        hold();
        say("close %d", dlclose(library));
        hold();
    }
    say("start %d", gpu_start());
    address held = gpu_alloc(100);
    for (int round = 0; round < 5; round++) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*alloc)(address *, size_t);
        *(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
        address more = 0;
        int status = alloc(&more, 10 * MIB);
        say("alloc %d close %d free %d", status, dlclose(driver), gpu_free(more));
    }
    hold();
    gpu_fill();
    say("free %d", gpu_free(held));
    return 0;
}

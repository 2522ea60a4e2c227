// A library linked against libcuda that takes memory when it is loaded.
#include "gpu.h"

static address held;

__attribute__((constructor)) static void come(void) {
    gpu_start();
    held = gpu_alloc(100);
}

__attribute__((destructor)) static void go(void) { gpu_free(held); }

int holds(void) { return held != 0; }

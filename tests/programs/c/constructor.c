// Allocates GPU memory before main, and uses it in main.
#include "gpu.h"

static address early;

__attribute__((constructor)) static void before(void) {
    say("start %d", gpu_start());
    say("early %d", (early = gpu_alloc(100)) != 0);
    gpu_fill();
}

int main(void) {
    hold();
    address late = gpu_alloc(50);
    say("late %d", late != 0);
    gpu_fill();
    hold();
    say("free %d %d", gpu_free(early), gpu_free(late));
    hold();
    return 0;
}

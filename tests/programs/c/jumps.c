// Waits for memory, is interrupted, and jumps out of the wait. Then it asks for more memory than
// the group may have, from the same depth of the stack, from further up or from further down. In
// the end it waits once more.
#include "gpu.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;

static void jump(int number) { siglongjmp(back, 1); }

__attribute__((noinline)) static address deeper(size_t mib) {
    volatile char room[1 << 16];
    for (size_t at = 0; at < sizeof room; at++)
        room[at] = 7;
    address found = gpu_alloc(mib);
    room[0] = 8;
    return found;
}

__attribute__((noinline)) static address as_deep(size_t mib) {
    address found = gpu_alloc(mib);
    return found;
}

int main(int count, char **arguments) {
    const char *from = arguments[1];
    struct sigaction action = {.sa_handler = jump};
    sigaction(SIGALRM, &action, NULL);
    say("start %d", gpu_start());
    address held = gpu_alloc(100);
    if (!sigsetjmp(back, 1)) {
        address waited = !strcmp(from, "up") ? deeper(2000) : as_deep(2000);
        say("waited %d", waited != 0);
        return 1;
    }
    address over = !strcmp(from, "down") ? deeper(5000) : as_deep(5000);
    say("over %d", over != 0);
    say("small %d", gpu_free(as_deep(10)));
    hold();
    address again = as_deep(1200);
    say("again %d", again != 0);
    hold();
    say("free %d %d", gpu_free(again), gpu_free(held));
    return 0;
}

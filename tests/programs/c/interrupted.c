// A signal arrives every 100 µs, without SA_RESTART, while the program starts and uses the GPU.
#include "gpu.h"
#include <signal.h>
#include <sys/time.h>

static volatile int signals;

static void handle(int number) { signals++; }

int main(void) {
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    int status = gpu_start(), failed = 0;
    for (int round = 0; round < 2000; round++) {
        address some = gpu_alloc(round % 7 + 1);
        failed += !some || gpu_free(some);
    }
    int refused = gpu_alloc(1 << 20) == 0;
    setitimer(ITIMER_REAL, &never, NULL);
    say("start %d failed %d refused %d", status, failed, refused);
    gpu_fill();
    hold();
    return signals == 0;
}

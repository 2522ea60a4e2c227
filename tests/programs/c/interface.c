/* Prints what the functions of include/gpulimit.h return. Compiled as C and as C++. */
#include "../../../include/gpulimit.h"

#include <stdio.h>

int main(void) {
    char name[8] = "";
    struct gpulimit_memory memory;
    struct gpulimit_pressure pressure;
    uint64_t peak = 0;
    memset(&memory, 0, sizeof memory);
    memset(&pressure, 0, sizeof pressure);
    memory.size = sizeof memory;
    pressure.size = sizeof pressure;
    printf("version %u\n", (unsigned)gpulimit_version());
    printf("capabilities %u\n", (unsigned)gpulimit_capabilities());
    printf("group %d", gpulimit_group(name, sizeof name));
    printf(" %s\n", name);
    printf("no room %d %d\n", gpulimit_group(NULL, 8), gpulimit_group(name, 0));
    printf("error %d", gpulimit_error(name, sizeof name));
    printf(" '%s' %d %d\n", name, gpulimit_error(NULL, 8), gpulimit_error(name, 0));
    printf("peak %d %d", gpulimit_peak_begin("0", &peak), gpulimit_peak_begin("0", NULL));
    printf(" %d %d\n", gpulimit_peak_read(1, &peak), gpulimit_peak_end(1, NULL));
    printf("memory %d %d\n", gpulimit_memory("0", &memory), gpulimit_memory("0", NULL));
    printf("captures %d\n", gpulimit_captures());
    printf("unregistered %d %d\n", gpulimit_pressure_wait(0, &pressure),
           gpulimit_pressure_unregister());
    printf("register %d\n", gpulimit_pressure_register());
    printf("wait %d\n", gpulimit_pressure_wait(0, &pressure));
    pressure.size = 4;
    printf("no size %d %d\n", gpulimit_pressure_wait(0, &pressure),
           gpulimit_pressure_wait(0, NULL));
    pressure.size = sizeof pressure;
    printf("no time %d %d\n", gpulimit_pressure_wait(-5, &pressure),
           gpulimit_pressure_wait(-2147483647 - 1, &pressure));
    printf("unregister %d\n", gpulimit_pressure_unregister());
    return 0;
}

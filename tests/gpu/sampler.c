/* A preload library that samples where a program spends processor time: one sample about every
 * 4 ms. At the end it writes "OWN ALL" to the file that SAMPLES names: the samples in the code of
 * libgpulimit.so, and all samples. Preload it behind libgpulimit.so. */
#define _GNU_SOURCE
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

static uintptr_t low, high;
static volatile long own, all;

static uintptr_t place_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#else
    return (uintptr_t)context->uc_mcontext.pc;
#endif
}

static void sample(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    uintptr_t at = place_of(context);
    __atomic_add_fetch(&all, 1, __ATOMIC_RELAXED);
    if (at >= low && at < high)
        __atomic_add_fetch(&own, 1, __ATOMIC_RELAXED);
}

static int find(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)size;
    (void)data;
    if (!strstr(object->dlpi_name, "/libgpulimit.so"))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            low = object->dlpi_addr + part->p_vaddr;
            high = low + part->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction action = {.sa_sigaction = sample, .sa_flags = SA_RESTART | SA_SIGINFO};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    struct itimerspec every = {{0, 1000000}, {0, 1000000}};
    timer_t timer;
    dl_iterate_phdr(find, NULL);
    sigaction(SIGPROF, &action, NULL);
    /* Unlike an interval timer, this timer ends when the process calls exec. */
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0)
        timer_settime(timer, 0, &every, NULL);
    /* Child processes are not sampled. */
    unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("SAMPLES");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld %ld\n", own, all);
        fclose(file);
    }
}

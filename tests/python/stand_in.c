/* Stands in for libgpulimit.so: the functions of gpulimit.h, and `stand_in_…` by which a test sets
 * what they answer. All in one process, without groups. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { OK = 0, NO_GROUP = 2, NO_DEVICE = 3, TIMEOUT = 5, NOT_REGISTERED = 7 };

struct memory {
    uint64_t size, limit, usage, available, total, own, allocations, pools, managed, driver, idle,
        peak, refusals;
};

struct pressure {
    uint64_t size, bytes;
    int32_t reason, ordinal;
    char uuid[64], group[256];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct memory memory = {.limit = UINT64_MAX};
static int registered, asked, ordinal, captured, looks, has_group = 1;
static uint64_t bytes;

/* A thread that waits at the time of a fork leaves the condition in the child in no valid state. */
static void renew(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, renew); }

/* For the test. */

void stand_in_memory(int field, uint64_t value) { ((uint64_t *)&memory)[field] = value; }
void stand_in_group(int has) { has_group = has; }
void stand_in_captures(int count) { __atomic_store_n(&captured, count, __ATOMIC_SEQ_CST); }
int stand_in_registered(void) { return registered; }
/* How often the module has looked whether a stream is captured. */
int stand_in_looks(void) { return __atomic_load_n(&looks, __ATOMIC_SEQ_CST); }

void stand_in_ask(uint64_t size, int device)
{
    pthread_mutex_lock(&lock);
    asked = 1, bytes = size, ordinal = device;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* gpulimit.h */

uint32_t gpulimit_version(void) { return 1; }

int gpulimit_group(char *name, size_t size)
{
    if (!has_group)
        return NO_GROUP;
    snprintf(name, size, "lab/alice");
    return OK;
}

int gpulimit_memory(const char *device, struct memory *answer)
{
    uint64_t size = answer->size;
    if (!has_group)
        return NO_GROUP;
    if (device && strcmp(device, "9") == 0)
        return NO_DEVICE;
    *answer = memory;
    answer->size = size;
    return OK;
}

int gpulimit_error(char *text, size_t size)
{
    snprintf(text, size, "%s", "");
    return OK;
}

/* The peak is `peak` of the memory, and a test sets it. */
int gpulimit_peak_begin(const char *device, uint64_t *peak)
{
    struct memory now = {.size = sizeof now};
    *peak = 7;
    return gpulimit_memory(device, &now);
}

int gpulimit_peak_read(uint64_t peak, uint64_t *bytes)
{
    *bytes = memory.peak;
    return peak == 7 ? OK : 4;
}

int gpulimit_peak_end(uint64_t peak, uint64_t *bytes) { return gpulimit_peak_read(peak, bytes); }

int gpulimit_pressure_register(void)
{
    if (!has_group)
        return NO_GROUP;
    __atomic_add_fetch(&registered, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int gpulimit_pressure_unregister(void)
{
    pthread_mutex_lock(&lock);
    __atomic_sub_fetch(&registered, 1, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}

int gpulimit_captures(void)
{
    __atomic_add_fetch(&looks, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&captured, __ATOMIC_SEQ_CST);
}

int gpulimit_pressure_wait(int timeout_ms, struct pressure *answer)
{
    struct timespec end;
    int code = 0;
    if (registered == 0)
        return NOT_REGISTERED;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += timeout_ms % 1000 * 1000000L;
    end.tv_sec += timeout_ms / 1000 + end.tv_nsec / 1000000000L;
    end.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&lock);
    while (!asked && registered && code == 0)
        code = pthread_cond_timedwait(&changed, &lock, &end);
    if (asked) {
        asked = 0;
        answer->bytes = bytes, answer->ordinal = ordinal, answer->reason = 1;
        strcpy(answer->uuid, "GPU-of-others");
        code = OK;
    } else {
        code = registered ? TIMEOUT : NOT_REGISTERED;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

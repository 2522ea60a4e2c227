/*
 * The C interface of gpulimit: the limit and the usage of the caller's group, and requests to give
 * memory back (pressure). docs/c-interface.md explains it, with an example.
 *
 * The functions look for libgpulimit.so in the running process. A program that uses them needs no
 * other library than that of dlsym (-ldl, before glibc 2.34), and also runs without gpulimit: all
 * functions then return GPULIMIT_NOT_LOADED, or 0. The header is for GCC, Clang and compilers with
 * their extensions, and every standard of C and C++ from C90 and C++98 on.
 *
 * - Threads: every function may be called by any thread at any time.
 * - Fork: a forked child is a process of its own, and not registered for pressure.
 * - Signals: do not call the functions from a signal handler. In a handler that interrupts a CUDA
 *   call they return GPULIMIT_FAILED (or 0).
 *
 * A device is a text: NULL or "" for the calling thread's current device (without a context: the
 * CUDA ordinal 0), "0", "1", ... for a CUDA ordinal in this process (CUDA_VISIBLE_DEVICES counts),
 * "GPU-..." or "MIG-..." for a UUID as NVML prints it.
 */
#ifndef GPULIMIT_H
#define GPULIMIT_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface in this header. */
#define GPULIMIT_VERSION 1

/* What the functions return. */
enum {
    GPULIMIT_OK = 0,
    GPULIMIT_NOT_LOADED = 1,     /* libgpulimit.so is not loaded, or lacks the function */
    GPULIMIT_NO_GROUP = 2,       /* the process has no limit */
    GPULIMIT_NO_DEVICE = 3,      /* the process does not see the device, or cannot know that yet */
    GPULIMIT_INVALID = 4,        /* an argument is wrong */
    GPULIMIT_TIMEOUT = 5,        /* nothing was asked in that time */
    GPULIMIT_INTERRUPTED = 6,    /* a signal handler has run meanwhile */
    GPULIMIT_NOT_REGISTERED = 7, /* the process is not registered for pressure */
    GPULIMIT_FAILED = 8          /* the process could not join its group: see gpulimit_error */
};

/* Bits of gpulimit_capabilities. */
#define GPULIMIT_CAN_WAIT ((uint64_t)1) /* the process can be asked for memory: pressure works */

/*
 * The figures of one device, in bytes. Set `size` to sizeof before the call; the library writes the
 * members that fit, and sets `size` to the bytes that it wrote.
 */
struct gpulimit_memory {
    uint64_t size;
    uint64_t limit;       /* the smallest limit of the group and those above it; UINT64_MAX: none */
    uint64_t usage;       /* the usage of the group with that limit, as `gpulimit show` prints it */
    uint64_t available;   /* what this process can still allocate without help from others */
    uint64_t total;       /* the memory of the device */
    uint64_t own;         /* what this process uses on the device */
    uint64_t allocations; /* the part of `own` in allocations, arrays and graphs */
    uint64_t pools;       /* the part in memory pools (cudaMallocAsync), with unused reserve */
    uint64_t managed;     /* the part in managed memory */
    uint64_t driver;      /* the part that the driver takes itself: contexts, code, streams */
    uint64_t idle;        /* what this process has reserved in its group and does not use */
    uint64_t peak;        /* the largest `own` so far */
    uint64_t refusals;    /* the number of refused requests of this process on the device */
};

/* Why memory should be given back. */
enum {
    GPULIMIT_PRESSURE_REQUEST = 1, /* a process needs memory for a request */
    GPULIMIT_PRESSURE_HIGH = 2,    /* the group's usage is above `high` */
    GPULIMIT_PRESSURE_LIMIT = 3    /* the group's usage is above its limit, which was lowered */
};

/* What is asked of this process. Set `size` to sizeof before the call, as above. */
struct gpulimit_pressure {
    uint64_t size;
    uint64_t bytes;  /* how much should be given back */
    int32_t reason;  /* GPULIMIT_PRESSURE_... */
    int32_t ordinal; /* the CUDA ordinal in this process; -1 if it does not see the device */
    char uuid[64];   /* "GPU-..." or "MIG-..." */
    char group[256]; /* the group that needs the memory; the front of a longer name is cut off */
};

/* Returns the function `name` of the library, or NULL. Looks for the function once. */
static __inline__ void *gpulimit_look_up(const char *name, void **known) {
    void *found = __atomic_load_n(known, __ATOMIC_RELAXED);
    void *missing = known; /* marks a function that is not there */
    if (!found) {
        /* NULL stands for RTLD_DEFAULT, which headers declare only with _GNU_SOURCE. */
        found = dlsym(NULL, name);
        __atomic_store_n(known, found ? found : missing, __ATOMIC_RELAXED);
    }
    return found == missing ? NULL : found;
}

/* Calls a function of the library, or returns `missing`. */
#define GPULIMIT_CALL(name, result, missing, types, arguments)                                     \
    static void *known;                                                                            \
    void *found = gpulimit_look_up(name, &known);                                                  \
    result(*function) types;                                                                       \
    if (!found)                                                                                    \
        return missing;                                                                            \
    memcpy(&function, &found, sizeof function);                                                    \
    return function arguments

/* Returns the version of the interface that the library has; 0 if it is not loaded. */
static __inline__ uint32_t gpulimit_version(void) {
    GPULIMIT_CALL("gpulimit_version", uint32_t, 0, (void), ());
}

/* Returns what the library can do for this process: bits GPULIMIT_CAN_... */
static __inline__ uint64_t gpulimit_capabilities(void) {
    GPULIMIT_CALL("gpulimit_capabilities", uint64_t, 0, (void), ());
}

/* Writes the name of the process's group, cut to `size` bytes with the NUL at its end. */
static __inline__ int gpulimit_group(char *name, size_t size) {
    GPULIMIT_CALL("gpulimit_group", int, GPULIMIT_NOT_LOADED, (char *, size_t), (name, size));
}

/*
 * Writes why the process could not join its group, and so gets no GPU memory: a text of one line,
 * cut to `size` bytes with the NUL at its end. Standard error has it once the process uses CUDA or
 * NVML. Writes an empty text if the process could join.
 */
static __inline__ int gpulimit_error(char *text, size_t size) {
    GPULIMIT_CALL("gpulimit_error", int, GPULIMIT_NOT_LOADED, (char *, size_t), (text, size));
}

/* In C++ the function has the name of the constructor of its structure. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
/*
 * Writes the figures of a device. Before cuInit, NVML tells them: of a device named by its UUID,
 * and of the ordinal 0 if the machine has one GPU and CUDA_VISIBLE_DEVICES is not set.
 */
static __inline__ int gpulimit_memory(const char *device, struct gpulimit_memory *memory) {
    GPULIMIT_CALL("gpulimit_memory", int, GPULIMIT_NOT_LOADED,
                  (const char *, struct gpulimit_memory *), (device, memory));
}
#pragma GCC diagnostic pop

/*
 * Begins to measure the peak of this process on a device: writes the number of the measurement.
 * There may be any number of them, each until gpulimit_peak_end. They cost allocations nothing.
 */
static __inline__ int gpulimit_peak_begin(const char *device, uint64_t *peak) {
    GPULIMIT_CALL("gpulimit_peak_begin", int, GPULIMIT_NOT_LOADED, (const char *, uint64_t *),
                  (device, peak));
}

/*
 * Writes the largest `own` of struct gpulimit_memory since the begin of the measurement. Memory
 * that the library has reserved ahead (2 MiB for each thread) may be used without being in it.
 */
static __inline__ int gpulimit_peak_read(uint64_t peak, uint64_t *bytes) {
    GPULIMIT_CALL("gpulimit_peak_read", int, GPULIMIT_NOT_LOADED, (uint64_t, uint64_t *),
                  (peak, bytes));
}

/* Does the same, and ends the measurement. */
static __inline__ int gpulimit_peak_end(uint64_t peak, uint64_t *bytes) {
    GPULIMIT_CALL("gpulimit_peak_end", int, GPULIMIT_NOT_LOADED, (uint64_t, uint64_t *),
                  (peak, bytes));
}

/* From now on this process may be asked for memory. Each call takes a call of unregister. */
static __inline__ int gpulimit_pressure_register(void) {
    GPULIMIT_CALL("gpulimit_pressure_register", int, GPULIMIT_NOT_LOADED, (void), ());
}

/* Undoes one call of gpulimit_pressure_register. The last one ends the waits of all threads. */
static __inline__ int gpulimit_pressure_unregister(void) {
    GPULIMIT_CALL("gpulimit_pressure_unregister", int, GPULIMIT_NOT_LOADED, (void), ());
}

/*
 * Waits until this process is asked for memory, at most `timeout_ms` milliseconds (-1: without an
 * end, 0: only looks, less than -1: returns GPULIMIT_INVALID). If several threads wait, one of them
 * is told. The next call of that thread says that the process has given back what it can: if that
 * was less than `bytes`, the process has no more for the same request.
 */
static __inline__ int gpulimit_pressure_wait(int timeout_ms, struct gpulimit_pressure *pressure) {
    GPULIMIT_CALL("gpulimit_pressure_wait", int, GPULIMIT_NOT_LOADED,
                  (int, struct gpulimit_pressure *), (timeout_ms, pressure));
}

/*
 * Returns the number of captures of streams into graphs that are under way in this process. During
 * a capture, functions that free memory can fail and spoil the capture.
 */
static __inline__ int gpulimit_captures(void) {
    GPULIMIT_CALL("gpulimit_captures", int, 0, (void), ());
}

#undef GPULIMIT_CALL

#ifdef __cplusplus
}
#endif

#endif

// A preloaded library that patches functions as UCX does, to watch memory: a jump in the place of
// a function's first instructions leads to code that counts the call. That code runs copies of the
// replaced instructions, and jumps behind them. Only instructions that mean the same anywhere are
// moved. A function with others stays, and its count is "not moved". At the end, the library writes
// the counts into the file PATCHES.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned char byte;

// The functions of the driver that UCX patches and this project hooks, and their twins.
static const char *const names[] = {
    "cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch", "cuMemAllocPitch_v2",
    "cuMemMap", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz", "cuLibraryGetGlobal", "cuMemFree", "cuMemFree_v2",
    "cuMemUnmap", "cuMemFreeAsync", "cuMemFreeAsync_ptsz",
};
enum { COUNT = sizeof names / sizeof *names, PATCH = 12, ROOM = 128 };
static long calls[COUNT];

// Returns the length of the instruction; 0 if it may not be moved.
static size_t movable(const byte *code) {
    byte prefix = (*code & 0xf0) == 0x40 ? *code : 0;
    size_t at = prefix != 0;
    if ((prefix == 0 || prefix == 0x41) && (code[at] & 0xf0) == 0x50)
        return at + 1; // push and pop
    if (prefix == 0 && (code[at] & 0xf8) == 0xb8)
        return at + 5; // mov $imm32, %reg
    if (prefix == 0x48 && code[at] == 0x89 && code[at + 1] == 0xe5)
        return at + 2; // mov %rsp, %rbp
    if (prefix == 0x48 && code[at] == 0x83 && code[at + 1] == 0xec)
        return at + 3; // sub $imm8, %rsp
    if (prefix == 0x48 && code[at] == 0x81 && code[at + 1] == 0xec)
        return at + 6; // sub $imm32, %rsp
    // mov %reg, disp(%rbp): UCX refuses it, but unoptimized builds begin so.
    if (prefix == 0x48 && code[at] == 0x89 && (code[at + 1] & 0xc7) == 0x45)
        return at + 3;
    if (prefix == 0x48 && code[at] == 0x89 && (code[at + 1] & 0xc7) == 0x85)
        return at + 6;
    return 0;
}

// Writes `mov $value, %rax` and the bytes after it; returns the end.
static byte *put(byte *to, const void *value, const char *after, size_t length) {
    memcpy(to, "\x48\xb8", 2);
    memcpy(to + 2, &value, 8);
    memcpy(to + 10, after, length);
    return to + 10 + length;
}

static void patch(byte *function, byte *code, long *count) {
    size_t moved = 0;
    for (size_t length; moved < PATCH; moved += length) {
        length = movable(function + moved);
        if (length == 0) {
            *count = -1;
            return;
        }
    }
    byte *copy = put(code, count, "\x48\xff\x00", 3); // incq (%rax)
    memcpy(copy, function, moved);
    // jmp *(%rip), with the address behind it: a copied instruction may have set %rax.
    memcpy(copy + moved, "\xff\x25\0\0\0\0", 6);
    byte *rest = function + moved;
    memcpy(copy + moved + 6, &rest, 8);
    byte *start = function - (size_t)function % sysconf(_SC_PAGESIZE);
    size_t length = function + PATCH - start;
    if (mprotect(start, length, PROT_READ | PROT_WRITE | PROT_EXEC))
        abort();
    put(function, code, "\xff\xe0", 2); // jmp *%rax
    mprotect(start, length, PROT_READ | PROT_EXEC);
}

__attribute__((constructor)) static void begin(void) {
    byte *code = mmap(NULL, COUNT * ROOM, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int at = 0; at < COUNT; at++)
        patch(dlsym(RTLD_DEFAULT, names[at]), code + at * ROOM, &calls[at]);
}

__attribute__((destructor)) static void end(void) {
    FILE *file = fopen(getenv("PATCHES"), "w");
    for (int at = 0; at < COUNT; at++)
        calls[at] < 0 ? fprintf(file, "%s not moved\n", names[at])
                      : fprintf(file, "%s %ld\n", names[at], calls[at]);
    fclose(file);
}

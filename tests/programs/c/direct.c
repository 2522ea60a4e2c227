// A program linked directly against libcuda that takes 100 MiB at a time until it is refused.
#include <stddef.h>
#include <stdio.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

int main(void) {
    void *context;
    unsigned long long pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    int count = 0, status;
    while (!(status = cuMemAlloc_v2(&pointer, 100 << 20)))
        count++;
    printf("%d %d\n", count, status);
    return 0;
}

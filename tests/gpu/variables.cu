// Needs a module with 1 GiB of variables twice: beside 3 GiB, and after these were freed.
//
// Prints "@{json}" after each launch: its code and the value that the kernel wrote. Waits for a
// line on standard input in between and at the end.

#include <cstdio>

#include <cuda_runtime.h>

__device__ char variable[1u << 30];
__device__ int table[1000] = {4711};

__global__ void touch(int *out) {
    variable[out[0]] = 1;
    out[0] = table[0];
}

static void await() {
    for (int read = getchar(); read != '\n' && read != EOF;) read = getchar();
}

static void launch(int *out) {
    int found = 0;
    touch<<<1, 1>>>(out);
    cudaError_t answer = cudaGetLastError();
    cudaDeviceSynchronize();
    cudaMemcpy(&found, out, sizeof found, cudaMemcpyDefault);
    printf("@{\"launch\": %d, \"found\": %d}\n", answer, found);
    await();
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    void *before = nullptr;
    int *out = nullptr;
    cudaError_t start = cudaMalloc(&before, size_t(3) << 30);
    if (start == cudaSuccess) start = cudaMalloc(&out, sizeof *out);
    if (start == cudaSuccess) start = cudaMemset(out, 0, sizeof *out);
    if (start != cudaSuccess) {
        printf("@{\"start\": %d}\n", start);
        return 3;
    }
    launch(out);
    cudaFree(before);
    launch(out);
    return 0;
}

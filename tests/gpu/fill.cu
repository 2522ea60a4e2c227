// Fills the GPU through the CUDA runtime until refused, with one way to allocate per run, and uses
// the memory.
//
// Usage: fill WAY, with WAY one of malloc, async, pitch, managed.
//
// Prints "@{json}": the bytes taken, the refusal's code, whether the kernel's results were right.
// Waits for a line on standard input before it frees (so that the state can be inspected), and then
// allocates once more. Sizes are bytes.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

static const size_t MIB = 1 << 20;

__global__ void mark(unsigned char *block, size_t size, unsigned char value) {
    size_t stride = size / 64 > 0 ? size / 64 : 1;
    for (size_t i = threadIdx.x * stride; i < size; i += blockDim.x * stride) block[i] = value;
}

static cudaError_t take(const char *way, void **block, size_t size) {
    if (!strcmp(way, "malloc")) return cudaMalloc(block, size);
    if (!strcmp(way, "async")) return cudaMallocAsync(block, size, 0);
    if (!strcmp(way, "managed")) return cudaMallocManaged(block, size);
    size_t pitch = 0, width = 100003;
    return cudaMallocPitch(block, &pitch, width, size / width + 1);
}

static cudaError_t give(const char *way, void *block) {
    return strcmp(way, "async") ? cudaFree(block) : cudaFreeAsync(block, 0);
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    const char *way = argc > 1 ? argv[1] : "malloc";
    // Managed memory is limited to 512 MiB here, far below the GPU's memory.
    bool managed = !strcmp(way, "managed");
    size_t most = managed ? 512 * MIB : ~size_t(0);
    cudaError_t code = cudaFree(nullptr);
    size_t left = 0, total = 0;
    if (code == cudaSuccess) code = cudaMemGetInfo(&left, &total);
    cudaDeviceProp about;
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&about, 0);
    if (code != cudaSuccess) {
        printf("@{\"start\": %d, \"text\": \"%s\"}\n", code, cudaGetErrorString(code));
        return 3;
    }
    if (!strcmp(way, "async")) {
        cudaMemPool_t pool;
        unsigned long long keep = ~0ull;
        cudaDeviceGetDefaultMemPool(&pool, 0);
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    }
    std::vector<std::pair<void *, size_t>> blocks;
    size_t got = 0, refused = 0;
    cudaError_t refusal = cudaSuccess, work = cudaSuccess;
    unsigned state = 4711;
    // The bound halves with each refusal, so the fill ends close to the limit.
    for (size_t bound = 200 * MIB; bound >= 64 * 1024 && got < most && work == cudaSuccess;) {
        state = state * 1103515245u + 12345u;
        size_t size = MIB + (state >> 4) % (200 * MIB) | 1;
        if (size > bound) size = bound;
        if (size > most - got) size = most - got;
        void *block = nullptr;
        cudaError_t answer = take(way, &block, size);
        if (answer != cudaSuccess) {
            if (refusal == cudaSuccess) refusal = answer;
            cudaGetLastError();
            bound = size / 2;
            refused++;
            continue;
        }
        mark<<<1, 64>>>((unsigned char *)block, size, (unsigned char)blocks.size());
        work = cudaGetLastError();
        blocks.push_back({block, size});
        got += size;
    }
    if (work == cudaSuccess) work = cudaDeviceSynchronize();
    size_t wrong = 0;
    for (size_t i = 0; i < blocks.size(); i++) {
        unsigned char value = 0;
        if (cudaMemcpy(&value, blocks[i].first, 1, cudaMemcpyDefault) != cudaSuccess ||
            value != (unsigned char)i)
            wrong++;
    }
    printf("@{\"way\": \"%s\", \"got\": %zu, \"blocks\": %zu, \"refusal\": %d, \"refusals\": %zu, "
           "\"work\": %d, \"wrong\": %zu, "
           "\"total\": %zu, \"properties_total\": %zu, \"free_at_start\": %zu}\n",
           way, got, blocks.size(), refusal, refused, work, wrong, total, about.totalGlobalMem,
           left);
    getchar();
    cudaError_t freed = cudaSuccess;
    for (auto &block : blocks) {
        cudaError_t answer = give(way, block.first);
        if (answer != cudaSuccess) freed = answer;
    }
    cudaDeviceSynchronize();
    void *again = nullptr;
    cudaError_t second = take(way, &again, managed ? 64 * MIB : 1024 * MIB);
    cudaDeviceSynchronize();
    printf("@{\"freed\": %d, \"again\": %d}\n", freed, second);
    return 0;
}

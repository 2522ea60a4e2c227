// Takes memory through the CUDA runtime until refused, or three times the limit of 4 GiB, in one of
// the ways other than plain allocations.
//
// Usage: ways WAY, with WAY one of array, array-3d, layered, mipmapped, graph, captured, stack,
// local, heap, variable.
//
// Prints "@{json}": the refusal's code, and how often memory was granted. Waits for a line on
// standard input before it frees everything. Sizes are bytes.

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

static const size_t MIB = 1 << 20;

// On most systems the variable is loaded at its first use: 1 GiB does not fit beside a context and
// the 3 GiB taken before.
__device__ char variable[1u << 30];

template <int BYTES> __global__ void local(int *out, int index) {
    int buffer[BYTES / 4];
    for (int i = 0; i < BYTES / 4; i++) buffer[i] = index + i;
    // The compiler must not know which element is read.
    out[0] = buffer[(index * 7919) % (BYTES / 4)];
}

__global__ void grab(void **out) { out[0] = malloc(100); }

__global__ void touch() { variable[0] = 1; }

static std::vector<std::function<cudaError_t()>> held;

static cudaError_t take(const std::string &way, int turn) {
    const cudaChannelFormatDesc floats = cudaCreateChannelDesc<float4>();
    if (way == "array") {
        cudaArray_t array;
        cudaError_t answer = cudaMallocArray(&array, &floats, 3000, 2000);
        if (answer == cudaSuccess) held.push_back([=] { return cudaFreeArray(array); });
        return answer;
    }
    if (way == "array-3d" || way == "layered") {
        cudaArray_t array;
        const bool layered = way == "layered";
        cudaError_t answer = cudaMalloc3DArray(&array, &floats,
                                               layered ? make_cudaExtent(1000, 1000, 7)
                                                       : make_cudaExtent(300, 200, 100),
                                               layered ? cudaArrayLayered : cudaArrayDefault);
        if (answer == cudaSuccess) held.push_back([=] { return cudaFreeArray(array); });
        return answer;
    }
    if (way == "mipmapped") {
        cudaMipmappedArray_t array;
        cudaError_t answer =
            cudaMallocMipmappedArray(&array, &floats, make_cudaExtent(2048, 2048, 0), 8);
        if (answer == cudaSuccess) held.push_back([=] { return cudaFreeMipmappedArray(array); });
        return answer;
    }
    if (way == "graph" || way == "captured") {
        static cudaStream_t stream;
        if (!stream) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        void *block = nullptr;
        cudaError_t answer = cudaSuccess;
        if (way == "graph") {
            cudaGraphCreate(&graph, 0);
            cudaMemAllocNodeParams node = {};
            node.poolProps.allocType = cudaMemAllocationTypePinned;
            node.poolProps.location.type = cudaMemLocationTypeDevice;
            node.bytesize = 120 * MIB;
            cudaGraphNode_t added;
            answer = cudaGraphAddMemAllocNode(&added, graph, nullptr, 0, &node);
            block = node.dptr;
        } else {
            cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
            answer = cudaMallocAsync(&block, 120 * MIB, stream);
            cudaStreamEndCapture(stream, &graph);
        }
        if (answer == cudaSuccess) answer = cudaGraphInstantiate(&ready, graph, 0);
        if (answer == cudaSuccess) answer = cudaGraphLaunch(ready, stream);
        cudaStreamSynchronize(stream);
        if (answer == cudaSuccess)
            held.push_back([=] {
                cudaError_t freed = cudaFree(block);
                cudaGraphExecDestroy(ready);
                return freed != cudaSuccess ? freed : cudaDeviceGraphMemTrim(0);
            });
        return answer;
    }
    if (way == "stack") {
        cudaError_t answer = cudaDeviceSetLimit(cudaLimitStackSize, 2048 + 1024 * size_t(turn));
        if (turn == 0) held.push_back([] { return cudaDeviceSetLimit(cudaLimitStackSize, 1024); });
        return answer;
    }
    if (way == "local") {
        static int *out;
        if (!out) cudaMalloc(&out, 4);
        switch (turn) {
        case 0:
            local<2048><<<1, 1>>>(out, turn);
            break;
        case 1:
            local<8192><<<1, 1>>>(out, turn);
            break;
        case 2:
            local<32768><<<1, 1>>>(out, turn);
            break;
        default:
            local<131072><<<1, 1>>>(out, turn);
            break;
        }
        cudaError_t answer = cudaGetLastError();
        cudaDeviceSynchronize();
        return answer;
    }
    if (way == "heap") {
        static void **out;
        cudaError_t answer = cudaMalloc(&out, 8);
        if (answer == cudaSuccess) answer = cudaDeviceSetLimit(cudaLimitMallocHeapSize, 5000 * MIB);
        if (answer == cudaSuccess) {
            grab<<<1, 1>>>(out);
            answer = cudaGetLastError();
            cudaDeviceSynchronize();
        }
        return answer;
    }
    if (way == "variable") {
        static void *before;
        if (!before) cudaMalloc(&before, 3072 * MIB);
        touch<<<1, 1>>>();
        cudaError_t answer = cudaGetLastError();
        cudaDeviceSynchronize();
        return answer;
    }
    return cudaErrorInvalidValue;
}

// Waits for the next order: a line.
static void await() {
    for (int read = getchar(); read != '\n' && read != EOF;) read = getchar();
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    const std::string way = argc > 1 ? argv[1] : "array";
    cudaError_t start = way == "variable" ? cudaSuccess : cudaFree(nullptr), answer = start;
    int turn = 0;
    while (answer == cudaSuccess && turn < 400) {
        answer = take(way, turn);
        turn += answer == cudaSuccess;
    }
    cudaGetLastError();
    printf("@{\"way\": \"%s\", \"start\": %d, \"granted\": %d, \"refusal\": %d}\n", way.c_str(),
           start, turn, answer);
    await();
    cudaError_t freed = cudaSuccess;
    for (auto &give : held) {
        cudaError_t given = give();
        if (given != cudaSuccess) freed = given;
    }
    cudaDeviceSynchronize();
    printf("@{\"freed\": %d}\n", freed);
    await();
    return 0;
}

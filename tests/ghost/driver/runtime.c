/* The part of the CUDA runtime and of cuBLAS that must answer something. All other functions that torch calls, launches of
   kernels included, do nothing and return 0: build.py generates them. Device memory is memory of this process, so copies
   are real, and fresh memory is zero. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <string.h>
#include <sys/mman.h>

#define TOTAL (80ul << 30)   /* bytes of an H100, which nobody touches */
#define RESERVED (8ul << 40) /* bytes of addresses; none is used twice, so that memory is zero without being cleared */
#define PAGE 4096ul
#define HEADER 512ul         /* before each allocation: its size. Allocations of CUDA are aligned to as many bytes. */

/* Two ranges of addresses: a pointer says by its range whether it is of the device, of pinned memory, or neither. */
struct range { char *first; size_t used, live; };
static struct range device, pinned;

static cudaError_t allocate(struct range *range, void **pointer, size_t bytes) {
    static const int protection = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    size_t size = (bytes + HEADER + PAGE - 1) / PAGE * PAGE;
    *pointer = 0;
    if (!range->first) {
        char *first = mmap(0, RESERVED, protection, kind, -1, 0);
        if (first == MAP_FAILED) return cudaErrorMemoryAllocation;
        range->first = first;
    }
    if (bytes > TOTAL || __sync_add_and_fetch(&range->live, size) > TOTAL) {
        if (bytes <= TOTAL) __sync_sub_and_fetch(&range->live, size);
        return cudaErrorMemoryAllocation;
    }
    char *start = range->first + __sync_fetch_and_add(&range->used, size);
    if (start + size > range->first + RESERVED) return cudaErrorMemoryAllocation;
    *(size_t *)start = size;
    *pointer = start + HEADER;
    return cudaSuccess;
}

static cudaError_t release(struct range *range, void *pointer) {
    if (!pointer) return cudaSuccess;
    char *start = (char *)pointer - HEADER;
    size_t size = *(size_t *)start;
    __sync_sub_and_fetch(&range->live, size);
    madvise(start, size, MADV_DONTNEED);
    return cudaSuccess;
}

static int inside(const struct range *range, const void *pointer) {
    const char *address = pointer;
    return range->first && address >= range->first && address < range->first + RESERVED;
}

#define ANSWER(name, arguments, answer) cudaError_t name arguments { answer; return cudaSuccess; }

/* Memory. A copy is done at once, whatever stream it is for. */
cudaError_t cudaMalloc(void **p, size_t n) { return allocate(&device, p, n); }
cudaError_t cudaFree(void *p) { return release(&device, p); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return allocate(&pinned, p, n); }
cudaError_t cudaFreeHost(void *p) { return release(&pinned, p); }
ANSWER(cudaMemGetInfo, (size_t *available, size_t *total), *total = TOTAL; *available = TOTAL - device.live)
ANSWER(cudaMemcpy, (void *to, const void *from, size_t n, enum cudaMemcpyKind k), memcpy(to, from, n))
ANSWER(cudaMemcpyAsync, (void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s), memcpy(to, from, n))
ANSWER(cudaMemset, (void *p, int value, size_t n), memset(p, value, n))
ANSWER(cudaMemsetAsync, (void *p, int value, size_t n, cudaStream_t s), memset(p, value, n))
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) { /* is_pinned() asks for the type */
    memset(a, 0, sizeof *a);
    a->type = inside(&device, p) ? cudaMemoryTypeDevice : inside(&pinned, p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->devicePointer = a->hostPointer = (void *)p;
    return cudaSuccess;
}

/* One device, of which torch asks name, architecture, and what bounds the shapes of kernels. */
ANSWER(cudaGetDeviceCount, (int *n), *n = 1)
ANSWER(cudaGetDevice, (int *number), *number = 0)
ANSWER(cudaDriverGetVersion, (int *version), *version = CUDART_VERSION)
ANSWER(cudaRuntimeGetVersion, (int *version), *version = CUDART_VERSION)
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int number) {
    static const struct cudaDeviceProp h100 = {
        .name = "NVIDIA H100 80GB HBM3", .major = 9, .minor = 0, .totalGlobalMem = TOTAL, .multiProcessorCount = 132,
        .warpSize = 32, .maxThreadsPerBlock = 1024, .maxThreadsPerMultiProcessor = 2048, .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536, .sharedMemPerBlock = 49152, .sharedMemPerBlockOptin = 232448,
        .sharedMemPerMultiprocessor = 233472, .maxGridSize = {2147483647, 65535, 65535},
        .maxThreadsDim = {1024, 1024, 64}, .l2CacheSize = 50 << 20,
    };
    *p = h100;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: *value = 1024;
    }
    return cudaSuccess;
}

/* Kernels: torch's choice of one depends on these. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    *a = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32, .binaryVersion = 90, .ptxVersion = 90};
    return cudaSuccess;
}
ANSWER(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, const void *kernel, int block, size_t shared), *n = 2)
ANSWER(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       (int *n, const void *kernel, int block, size_t shared, unsigned flags), *n = 2)

/* Streams and events: all work is done when a function returns. A handle must not be null. */
ANSWER(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5)
ANSWER(cudaStreamCreateWithPriority, (cudaStream_t *s, unsigned flags, int priority), *s = (void *)2)
ANSWER(cudaStreamCreate, (cudaStream_t *s), *s = (void *)2)
ANSWER(cudaStreamIsCapturing, (cudaStream_t s, enum cudaStreamCaptureStatus *status), *status = cudaStreamCaptureStatusNone)
ANSWER(cudaStreamGetCaptureInfo, (cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
       cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *n),
       *status = cudaStreamCaptureStatusNone)
ANSWER(cudaEventCreate, (cudaEvent_t *e), *e = (void *)1)
ANSWER(cudaEventCreateWithFlags, (cudaEvent_t *e, unsigned flags), *e = (void *)1)
ANSWER(cudaEventElapsedTime, (float *milliseconds, cudaEvent_t first, cudaEvent_t last), *milliseconds = 1)

/* cuBLAS: handles that are not null, and one algorithm for each product. */
#define HANDLE(name) int name(void **handle) { *handle = (void *)8; return 0; }
HANDLE(cublasCreate_v2)
HANDLE(cublasLtMatmulDescCreate)
HANDLE(cublasLtMatmulPreferenceCreate)
HANDLE(cublasLtMatrixLayoutCreate)
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int most, void *results, int *n) { *n = 1; return 0; }

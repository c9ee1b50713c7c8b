// What every kernel shares: strided views, live counts, reductions.
//
// Shapes are in GGUF order: ne[0] is contiguous. Strides `nb` are in bytes.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <stdint.h>

// A tensor as a kernel sees it. `src/backend/cuda/kernel.rs` has the same struct.
struct View {
    char* data;
    const int* live;   // number of live entries of dimension `live_dim`, or null
    long long nb[4];   // strides in bytes
    int ne[4];         // full width
    int live_dim;      // -1 when nothing is cut
    int dtype;         // GGUF id of the element type
};

static_assert(sizeof(View) == 72, "the host packs this struct");

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Kernels of a graph are launched as dependents of the one before (sm_90 and later): a
// block may start while that one still runs, and waits here until all of it is done
// and seen. Every block of every kernel does so before it reads what another kernel
// writes, overwrites what one reads, or ends: otherwise the kernel after it would start
// too early. Weights, inputs and the live counts, which go up before the first kernel,
// may be read earlier.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for the cache line of `at`. Unlike a load this may come before `wait_for_inputs`
// where other kernels may still write there: it ends in the cache that all of them share.
__device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// Asks for `n` > 0 values from `from` on, thread `i` of `threads` for each threads-th line.
__device__ __forceinline__ void prefetch_values(const float* from, int n, int i, int threads) {
    constexpr int LINE = 32;  // values
    // They may start anywhere in a line: the last one is asked for by itself.
    for (i *= LINE; i < n + LINE - 1; i += threads * LINE) prefetch(from + min(i, n - 1));
}

// Both, for kernels that have nothing to do before.
__device__ __forceinline__ void start() {
    let_next_start();
    wait_for_inputs();
}

// Length of dimension `d`, cut to the live count of this step.
__device__ __forceinline__ int dim(const View& v, int d) {
    int n = v.ne[d];
    return d == v.live_dim ? min(n, *v.live) : n;
}

// First value of row (i1, i2, i3).
template <typename T>
__device__ __forceinline__ T* row_of(const View& v, long long i1, long long i2 = 0, long long i3 = 0) {
    return (T*)(v.data + i1 * v.nb[1] + i2 * v.nb[2] + i3 * v.nb[3]);
}

// Row number `r` of all rows of a view (full width) as its three indices.
struct RowIndex {
    int i1, i2, i3;
};

__device__ __forceinline__ RowIndex row_index(const View& v, long long r) {
    if (r < v.ne[1]) return {(int)r, 0, 0};  // most tensors are matrices: no divisions
    RowIndex at;
    at.i1 = (int)(r % v.ne[1]);
    r /= v.ne[1];
    at.i2 = (int)(r % v.ne[2]);
    at.i3 = (int)(r / v.ne[2]);
    return at;
}

// False for rows beyond the live count.
__device__ __forceinline__ bool is_live(const View& v, RowIndex at) {
    if (v.live_dim == 1) return at.i1 < *v.live;
    if (v.live_dim == 2) return at.i2 < *v.live;
    if (v.live_dim == 3) return at.i3 < *v.live;
    return true;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int o = WARP / 2; o > 0; o /= 2) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int o = WARP / 2; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
    return x;
}

// Sum over the block in a fixed order; every thread gets it. blockDim.x is a
// multiple of 32 and at most 1024; all threads call it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float part[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = warp_sum(x);
    __syncthreads();  // `part` may still be read from the call before
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = lane < blockDim.x / WARP ? part[lane] : 0.f;
    return warp_sum(x);
}

__device__ __forceinline__ float block_max(float x) {
    __shared__ float part[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = lane < blockDim.x / WARP ? part[lane] : -INFINITY;
    return warp_max(x);
}

// The threads that work on one row together: a warp (short rows) or a block.
//
//   WarpRow   grid = ceil(rows / (blockDim.x / 32))
//   BlockRow  grid = rows
//
// All threads of a group take the same branches around `sum` and `max`, whose results
// every thread gets, in a fixed order of additions.
#pragma once
#include "map.cuh"

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int o = WARP / 2; o > 0; o /= 2) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}

__device__ __forceinline__ double block_sum(double x) {
    __shared__ double part[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = warp_sum(x);
    __syncthreads();  // `part` may still be read from the call before
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = lane < blockDim.x / WARP ? part[lane] : 0.;
    return warp_sum(x);
}

struct WarpRow {
    static __device__ __forceinline__ long long row() {
        return (long long)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    }
    static __device__ __forceinline__ int index() { return threadIdx.x % WARP; }
    static __device__ __forceinline__ int size() { return WARP; }
    template <typename T>
    static __device__ __forceinline__ T sum(T x) {
        return warp_sum(x);
    }
    static __device__ __forceinline__ float max(float x) { return warp_max(x); }
};

struct BlockRow {
    static __device__ __forceinline__ long long row() { return blockIdx.x; }
    static __device__ __forceinline__ int index() { return threadIdx.x; }
    static __device__ __forceinline__ int size() { return blockDim.x; }
    template <typename T>
    static __device__ __forceinline__ T sum(T x) {
        return block_sum(x);
    }
    static __device__ __forceinline__ float max(float x) { return block_max(x); }
};

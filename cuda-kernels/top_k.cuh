// Ranking values: falling, equal ones by rising index, NaN last. A value and its
// index make one 64-bit key; keys of a row are distinct and the best is the largest.
#pragma once
#include "common.cuh"

// The sign bit turned so that bits compare as values do; + 0 makes -0 equal 0. Only NaN
// gives 0.
__device__ __forceinline__ uint32_t rank_value(float x) {
    const uint32_t bits = __float_as_uint(x + 0.f);
    return x != x ? 0u : bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ uint64_t ranked(uint32_t value, int index) {
    return (uint64_t)value << 32 | (0xffffffffu - (uint32_t)index);
}

__device__ __forceinline__ uint64_t rank_key(float x, int index) { return ranked(rank_value(x), index); }

__device__ __forceinline__ int index_of(uint64_t key) { return (int)(0xffffffffu - (uint32_t)key); }

// Below every key, and above: what a thread without a value holds, and where a
// search starts.
constexpr uint64_t NO_KEY = 0, ALL_KEYS = ~0ull;

__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ uint64_t warp_max(uint64_t key) {
    // The larger half first: two reductions take less than five exchanges.
    const uint32_t high = (uint32_t)(key >> 32), top = __reduce_max_sync(ALL_LANES, high);
    const uint32_t low = __reduce_max_sync(ALL_LANES, high == top ? (uint32_t)key : 0u);
    return (uint64_t)top << 32 | low;
}

// The largest key of the block, for every thread.
__device__ __forceinline__ uint64_t block_max(uint64_t key) {
    __shared__ uint64_t part[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    key = warp_max(key);
    __syncthreads();  // `part` may still be read from the call before
    if (lane == 0) part[warp] = key;
    __syncthreads();
    return warp_max(lane < blockDim.x / WARP ? part[lane] : NO_KEY);
}

// The best key below `last` among those that the warp's lanes hold.
template <int N>
__device__ __forceinline__ uint64_t next_key(const uint64_t (&keys)[N], uint64_t last) {
    uint64_t best = NO_KEY;
#pragma unroll
    for (int j = 0; j < N; j++) best = larger(best, keys[j] < last ? keys[j] : NO_KEY);
    return warp_max(best);
}

// TOP_K over rows of f32, contiguous in ne[0]: x[k, ..] -> dst[count, ..], indices (i32)
// by falling value, ties by rising index, NaN last.
//
//   top_k_<n>  one warp a row, k <= 32 n; grid as in row_group.cuh
//   top_k_any  any k and count, one block for several rows; `kept` holds `width`
//              (a power of two, at least count) keys a block
#include "row_group.cuh"
#include "top_k.cuh"

template <int N>
__device__ __forceinline__ void top_k_warp(const View& dst, const View& x) {
    const long long r = WarpRow::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
    int* out = row_of<int>(dst, at.i1, at.i2, at.i3);
    const int k = dim(x, 0), lane = threadIdx.x % WARP;
    uint64_t keys[N], last = ALL_KEYS;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int c = lane + j * WARP;
        keys[j] = c < k ? rank_key(row[c], c) : NO_KEY;
    }
    for (int i = 0; i < dst.ne[0]; i++) {
        last = next_key(keys, last);
        if (lane == 0) out[i] = index_of(last);
    }
}

#define TOP_K(n) \
    extern "C" __global__ void top_k_##n(View dst, View x) { start(); top_k_warp<n>(dst, x); }

TOP_K(4)
TOP_K(8)
TOP_K(16)
TOP_K(32)

// A key of the row such that `count` keys are not below it: digits of 8 bits from the
// top, each by counting. The whole block calls it, with at least one warp.
__device__ uint64_t nth_key(const float* row, int k, int count) {
    __shared__ int bins[256];
    __shared__ int left_after;
    __shared__ uint64_t chosen;
    uint64_t prefix = 0;
    int left = count;  // how many keys that start with `prefix` are wanted
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        const uint64_t mask = shift == 56 ? 0 : ALL_KEYS << (shift + 8);
        for (int c = threadIdx.x; c < k; c += blockDim.x) {
            const uint64_t key = rank_key(row[c], c);
            // Integer counts: their order does not matter.
            if ((key & mask) == prefix) atomicAdd(&bins[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x < WARP) {
            // Lane l has digits 255 - 8 l downwards; `above` counts larger digits.
            const int top = 255 - 8 * (int)threadIdx.x;
            int mine = 0;
            for (int i = 0; i < 8; i++) mine += bins[top - i];
            int above = mine;
            for (int o = 1; o < WARP; o *= 2) {
                const int other = __shfl_up_sync(ALL_LANES, above, o);
                if (threadIdx.x >= o) above += other;
            }
            above -= mine;
            if (above < left && left <= above + mine) {
                int digit = top;
                while (above + bins[digit] < left) above += bins[digit--];
                chosen = prefix | (uint64_t)digit << shift;
                // 0: all keys of this digit are wanted, lower digits do not matter.
                left_after = left - above == bins[digit] ? 0 : left - above;
            }
        }
        __syncthreads();
        prefix = chosen;
        left = left_after;
        if (left == 0) break;
    }
    return prefix;
}

// Sorts `width` keys (a power of two) falling, by bitonic merging.
__device__ void sort_keys(uint64_t* keys, int width) {
    for (int run = 2; run <= width; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < width / 2; i += blockDim.x) {
                const int lo = i / step * 2 * step + i % step, hi = lo + step;
                const uint64_t a = keys[lo], b = keys[hi];
                if ((a < b) == ((lo & run) == 0)) {
                    keys[lo] = b;
                    keys[hi] = a;
                }
            }
            __syncthreads();
        }
    }
}

// Keys at or above the count-th are gathered in any order, then sorted.
extern "C" __global__ void top_k_any(View dst, View x, uint64_t* kept, int width) {
    start();
    __shared__ int n_kept;
    uint64_t* keys = kept + (long long)blockIdx.x * width;
    const int k = dim(x, 0), count = dst.ne[0];
    for (long long r = blockIdx.x; r < n_rows(dst); r += gridDim.x) {
        const RowIndex at = row_index(dst, r);
        if (!is_live(dst, at)) continue;
        const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
        const uint64_t least = count < k ? nth_key(row, k, count) : NO_KEY;
        if (threadIdx.x == 0) n_kept = 0;
        for (int i = threadIdx.x; i < width; i += blockDim.x) keys[i] = NO_KEY;
        __syncthreads();
        for (int c = threadIdx.x; c < k; c += blockDim.x) {
            const uint64_t key = rank_key(row[c], c);
            if (key >= least) keys[atomicAdd(&n_kept, 1)] = key;
        }
        __syncthreads();
        sort_keys(keys, width);
        int* out = row_of<int>(dst, at.i1, at.i2, at.i3);
        for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = index_of(keys[i]);
        __syncthreads();  // the next row reuses `keys`
    }
}

// ARGMAX, TOP_K, SUM_ROWS, MEAN, CUMSUM over rows of f32, contiguous in ne[0].
//
//   argmax_rows   x[k, r] -> dst[r], one block a row
//   argmax_parts, argmax_merge
//                 the same for long rows: `parts` blocks a row leave their best key
//                 in partial[parts, r], then one warp a row takes the best of these
//   top_k_<n>     x[k, ..] -> dst[count, ..], one warp a row, k <= 32 n
//   top_k_any     any k and count, one block for several rows; `kept` holds `width`
//                 (a power of two, at least count) keys a block
//   sum_rows      x[k, ..] -> dst[1, ..], divided by k when `mean`; f64 accumulator
//   cumsum        running sum, one block a row; f64 accumulator
//
// Indices are i32. Grids as in row_group.cuh unless told; blocks of whole warps.
#include "row_group.cuh"
#include "top_k.cuh"

extern "C" __global__ void argmax_rows(View dst, View x) {
    start();
    const int r = blockIdx.x;
    if (r >= dim(x, 1)) return;
    const float* row = row_of<const float>(x, r);
    const int k = dim(x, 0);
    uint64_t best = NO_KEY;
    for (int c = threadIdx.x; c < k; c += blockDim.x) best = larger(best, rank_key(row[c], c));
    best = block_max(best);
    if (threadIdx.x == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

// grid = rows * parts
extern "C" __global__ void argmax_parts(View x, uint64_t* partial, int parts) {
    start();
    const int r = blockIdx.x / parts, part = blockIdx.x % parts;
    if (r >= dim(x, 1)) return;
    const float* row = row_of<const float>(x, r);
    const int k = dim(x, 0);
    uint64_t best = NO_KEY;
    for (int c = part * blockDim.x + threadIdx.x; c < k; c += parts * blockDim.x)
        best = larger(best, rank_key(row[c], c));
    best = block_max(best);
    if (threadIdx.x == 0) partial[blockIdx.x] = best;
}

// grid = rows, one warp a block
extern "C" __global__ void argmax_merge(View dst, View x, const uint64_t* partial, int parts) {
    start();
    const int r = blockIdx.x;
    if (r >= dim(x, 1)) return;
    uint64_t best = NO_KEY;
    for (int i = threadIdx.x; i < parts; i += WARP) best = larger(best, partial[(long long)r * parts + i]);
    best = warp_max(best);
    if (threadIdx.x == 0) ((int*)dst.data)[r] = dim(x, 0) > 0 ? index_of(best) : 0;
}

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

template <typename G>
__device__ __forceinline__ void sum_rows(const View& dst, const View& x, int mean) {
    const long long r = G::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
    const int k = dim(x, 0);
    double sum = 0.;
    for (int c = G::index(); c < k; c += G::size()) sum += row[c];
    sum = G::sum(sum);
    if (G::index() == 0) *row_of<float>(dst, at.i1, at.i2, at.i3) = (float)(mean ? sum / k : sum);
}

extern "C" __global__ void sum_rows_warp(View dst, View x, int mean) { start(); sum_rows<WarpRow>(dst, x, mean); }
extern "C" __global__ void sum_rows_block(View dst, View x, int mean) { start(); sum_rows<BlockRow>(dst, x, mean); }

// Each thread sums 4 neighbours; warps, then the block, add what lies before them.
extern "C" __global__ void cumsum(View dst, View x) {
    start();
    __shared__ double totals[WARP];
    const RowIndex at = row_index(dst, blockIdx.x);
    if (!is_live(dst, at)) return;
    const float* in = row_of<const float>(x, at.i1, at.i2, at.i3);
    float* out = row_of<float>(dst, at.i1, at.i2, at.i3);
    const int k = dim(x, 0), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double carry = 0.;
    for (int first = 0; first < k; first += 4 * blockDim.x) {
        const int c = first + 4 * threadIdx.x;
        double sums[4], sum = 0.;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (c + j < k) sum += in[c + j];
            sums[j] = sum;
        }
        double upto = sum;
        for (int o = 1; o < WARP; o *= 2) {
            const double other = __shfl_up_sync(ALL_LANES, upto, o);
            if (lane >= o) upto += other;
        }
        __syncthreads();  // `totals` may still be read from the piece before
        if (lane == WARP - 1) totals[warp] = upto;
        __syncthreads();
        double before = carry;
        for (int w = 0; w < blockDim.x / WARP; w++) {
            if (w == warp) before = carry;
            carry += totals[w];
        }
        // Not `upto - sum`, which is NaN where the sum is infinite.
        const double lower = __shfl_up_sync(ALL_LANES, upto, 1);
        if (lane > 0) before += lower;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (c + j < k) out[c + j] = (float)(before + sums[j]);
        }
    }
}

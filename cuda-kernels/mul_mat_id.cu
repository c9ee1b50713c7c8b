// MUL_MAT_ID for many tokens: the (token, slot) pairs are sorted by expert, then each
// block multiplies one expert's rows with up to 64 of its pairs.
#include "mul_mat.cuh"
#include "quant_types.cuh"

constexpr int MAX_EXPERTS = 1024;

// What moe_bucket leaves in scratch for mul_mat_id_<type>.
struct Buckets {
    int n_tiles;
    int pad[3];
    // Followed by: int pair[n_pairs], sorted by expert, pairs of an expert rising;
    // then int3-like tiles {expert, first, count} with first an index into `pair`.
};

__device__ __forceinline__ int* pairs_of(char* scratch) { return (int*)(scratch + sizeof(Buckets)); }

__device__ __forceinline__ int* tiles_of(char* scratch, int n_pairs) { return pairs_of(scratch) + n_pairs; }

// moe_bucket: ids [n_used, n] -> Buckets. One block of 1024 threads. A warp counts and
// lists the pairs of its experts in rising order, so the lists are the same every time.
extern "C" __global__ void __launch_bounds__(1024)
    moe_bucket(const __grid_constant__ View ids, int n_expert, char* scratch) {
    start();
    __shared__ int first[MAX_EXPERTS + 1], first_tile[MAX_EXPERTS + 1];
    const int n_used = ids.ne[0], n_pairs = n_used * dim(ids, 1);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    auto expert_of = [&](int pair) {
        const int id = row_of<int>(ids, pair / n_used)[pair % n_used];
        return min(max(id, 0), n_expert - 1);
    };
    for (int e = warp; e < n_expert; e += WARP) {
        int count = 0;
        for (int p = lane; p < n_pairs; p += WARP) count += expert_of(p) == e;
        count = __reduce_add_sync(ALL_LANES, count);
        if (lane == 0) first[e + 1] = count;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        first[0] = first_tile[0] = 0;
        for (int e = 0; e < n_expert; e++) {
            first_tile[e + 1] = first_tile[e] + (first[e + 1] + MM_COLUMNS - 1) / MM_COLUMNS;
            first[e + 1] += first[e];
        }
        ((Buckets*)scratch)->n_tiles = first_tile[n_expert];
    }
    __syncthreads();
    int* list = pairs_of(scratch);
    int* tiles = tiles_of(scratch, n_used * ids.ne[1]);
    for (int e = warp; e < n_expert; e += WARP) {
        int at = first[e];
        for (int p0 = 0; p0 < n_pairs; p0 += WARP) {
            const bool mine = p0 + lane < n_pairs && expert_of(p0 + lane) == e;
            const unsigned who = __ballot_sync(ALL_LANES, mine);
            if (mine) list[at + __popc(who & ((1u << lane) - 1))] = p0 + lane;
            at += __popc(who);
        }
        for (int t = first_tile[e] + lane; t < first_tile[e + 1]; t += WARP) {
            const int begin = first[e] + (t - first_tile[e]) * MM_COLUMNS;
            tiles[3 * t] = e;
            tiles[3 * t + 1] = begin;
            tiles[3 * t + 2] = min(first[e + 1] - begin, MM_COLUMNS);
        }
    }
}

// y[m, n_used, n]; grid = (ceil(m / 128), upper bound of tiles).
template <class T>
__device__ __forceinline__ void mul_mat_id(const View& w, const View& x, const View& y, char* scratch,
                                           char* shared) {
    if (blockIdx.y >= ((Buckets*)scratch)->n_tiles) return;
    const int n_used = y.ne[1];
    const int* tile = tiles_of(scratch, n_used * y.ne[2]) + 3 * blockIdx.y;
    const int expert = tile[0], n_cols = tile[2];
    const int* list = pairs_of(scratch) + tile[1];
    const int lane = threadIdx.x % WARP, r = lane / 4, c = lane % 4;
    const int n_units = (w.ne[0] + UNIT - 1) / UNIT, m0 = (blockIdx.x * MM_WARPS + threadIdx.x / WARP) * TILE_ROWS;
    const size_t tiles_before = (size_t)expert * ((w.ne[1] + TILE_ROWS - 1) / TILE_ROWS) + m0 / TILE_ROWS;
    float acc[MM_COLUMNS / 8][4] = {};
    block_columns<T>((const uint8_t*)w.data + tiles_before * row_tile_bytes<T>(n_units), m0 < w.ne[1], n_units,
                     n_cols, shared,
                     [&](int col) {
                         const int pair = list[min(col, n_cols - 1)];
                         return row_of<half>(x, x.ne[1] == 1 ? 0 : pair % n_used, pair / n_used);
                     },
                     acc);
#pragma unroll
    for (int j = 0; j < MM_COLUMNS / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = m0 + r + i / 2 * 8, col = 8 * j + 2 * c + i % 2;
            if (row >= w.ne[1] || col >= n_cols) continue;
            const int pair = list[col];
            row_of<float>(y, pair % n_used, pair / n_used)[row] = acc[j][i] * ACT_UNSCALE;
        }
    }
}

#define ENTRY(T)                                                                       \
    extern "C" __global__ void __launch_bounds__(MM_THREADS, 2)                        \
        mul_mat_id_##T(const __grid_constant__ View w, const __grid_constant__ View x, \
                       const __grid_constant__ View y, char* scratch) {                \
        start();                                                                       \
        __shared__ __align__(128) char shared[STAGES * STAGE_BYTES];                   \
        mul_mat_id<T>(w, x, y, scratch, shared);                                       \
    }
FOR_EACH_F16_TYPE(ENTRY)

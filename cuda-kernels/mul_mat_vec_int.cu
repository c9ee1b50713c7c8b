// mul_mat_vec_mixed_<tokens>: the integer form of mul_mat_vec.cuh (int_product.cuh), for 1, 4
// and 8 columns. Files mix Q4_K and Q6_K, also among Q, K and V, which then share a launch.
//
// Warp w of a block has class w of a row tile's groups; a block does `split` row tiles, one
// after the other. Dynamic shared memory: XGroup of as many groups as fit X_BYTES.
#include "int_tokens.cuh"
#include "mul_mat_vec.cuh"

#include <type_traits>

static_assert(VEC_WARPS == CLASSES, "a class each warp");

// Bytes for x at most: two blocks a multiprocessor. `src/backend/cuda/ops/mul_mat.rs` asks
// for them.
constexpr int X_BYTES = 72 << 10;

template <class T, int NT>
using Sums = std::conditional_t<NT == 1, OneSum, TokenSums<T, NT == 1 ? 4 : NT>>;

template <int NT>
struct IntShared {
    XGroup<NT> zeros;
    float sums[2][CLASSES][TILE_ROWS * NT];
    float squares[NT][MOST_GROUPS];
    float factors[NT];
};

// Groups first .. first + count of all columns. Two at a time: their latency would add up.
template <int NT>
__device__ __forceinline__ void stage(const VecJob& job, const Columns& at, IntShared<NT>& sh, XGroup<NT>* xs,
                                      int first, int count, int warp, int lane) {
    constexpr int AHEAD = 2;
    const float* norm = (const float*)job.norm.data;
    const int n = count * at.n;
    for (int i0 = warp; i0 < n; i0 += AHEAD * CLASSES) {
        float v[AHEAD][8];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = i0 + j * CLASSES;
            if (i < n) load_eight(v[j], at.x(job, i / count) + (first + i % count) * X_GROUP, lane);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = i0 + j * CLASSES, col = i / count, g = i % count;
            if (i >= n) break;
            if (norm) {
                float w[8];
                load_eight(w, norm + (first + g) * X_GROUP, lane);
                const float squares = sum_of_squares(v[j]);
                if (lane == 0) sh.squares[col][first + g] = squares;
#pragma unroll
                for (int e = 0; e < 8; e++) v[j][e] *= w[e];
            }
            stage_group(xs[g], col, v[j], lane);
        }
    }
}

template <class T, int NT>
__device__ __forceinline__ void block_product(const VecJob& job, int block, XGroup<NT>* xs, IntShared<NT>& sh) {
    const int n_groups = job.w.ne[0] / X_GROUP;
    const size_t tile_bytes = (size_t)n_groups * T::GROUP;
    const int n_tiles = (job.w.ne[1] + TILE_ROWS - 1) / TILE_ROWS;
    const int tile0 = block * job.split, tile1 = min(tile0 + job.split, n_tiles);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    let_next_start();
    for (int i = threadIdx.x; i < (int)(sizeof(sh.zeros) / 16); i += VEC_THREADS)
        ((uint4*)&sh.zeros)[i] = make_uint4(0, 0, 0, 0);
    if (job.ids.data) wait_for_inputs();
    const Columns at(job, tile_bytes);
    if (at.n == 0) return wait_for_inputs();
    // Chunks of whole rounds of classes, where all of x does not fit.
    constexpr int MOST = X_BYTES / sizeof(XGroup<NT>) / CLASSES * CLASSES;
    const bool whole = n_groups <= MOST;
    const int chunk = whole ? n_groups : MOST;
    // A step ahead, where that leaves registers; with more tokens the other warps are busy.
    constexpr bool AHEAD = NT < 8;
    typename T::Step cur, next;
    auto load = [&](typename T::Step& st, int tile, int matrix, int g) {
        const uint8_t* from = (matrix ? at.w2 : at.w) + tile * tile_bytes;
        T::load(st, from, g, n_groups * GROUP_UNITS, lane);
        // `add_group` wants the scales of half c % 2 in lane c, mma those of half c / 2.
        if constexpr (T::ID == Q6_K::ID)
            st.scales = stream<uint4>(from + (size_t)g * T::GROUP + T::SCALES, lane / 4 * 2 + lane % 2);
    };
    // The first weights are under way while x is waited for and staged.
    if (warp < n_groups) load(cur, tile0, 0, warp);
    wait_for_inputs();
    const int n_matrices = at.w2 ? 2 : 1;
    for (int tile = tile0; tile < tile1; tile++) {
        for (int m = 0; m < n_matrices; m++) {
            Sums<T, NT> sums;
            for (int first = 0; first < n_groups; first += chunk) {
                const int count = min(chunk, n_groups - first);
                if (!whole || (tile == tile0 && m == 0)) {
                    if (!whole) __syncthreads();
                    stage(job, at, sh, xs, first, count, warp, lane);
                    __syncthreads();
                }
                for (int g = first + warp; g < first + count; g += CLASSES) {
                    if (!AHEAD) add_group(sums, cur, xs[g - first], sh.zeros, lane);
                    // What comes next, of this matrix, the other or the next tile.
                    typename T::Step& to = AHEAD ? next : cur;
                    if (g + CLASSES < n_groups)
                        load(to, tile, m, g + CLASSES);
                    else if (m + 1 < n_matrices)
                        load(to, tile, 1, warp);
                    else if (tile + 1 < tile1)
                        load(to, tile + 1, 0, warp);
                    if (AHEAD) {
                        add_group(sums, cur, xs[g - first], sh.zeros, lane);
                        cur = next;
                    }
                }
            }
            float* to = sh.sums[m][warp];
            sums.each_sum(lane, [&](int row, int t, float v) { to[t * TILE_ROWS + row] = v; });
        }
        if (tile == tile0 && job.norm.data) {
            for (int col = warp; col < at.n; col += CLASSES) {
                const float factor = norm_factor(sh.squares[col], n_groups, job.eps, lane);
                if (lane == 0) sh.factors[col] = factor;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < TILE_ROWS * at.n; i += VEC_THREADS) {
            const int col = i / TILE_ROWS, m = tile * TILE_ROWS + i % TILE_ROWS;
            if (m >= job.w.ne[1]) continue;
            const float b = job.b.data ? row_of<float>(job.b, job.b.ne[1] == 1 ? 0 : at.t0 + col)[m] : 0.f;
            const float factor = job.norm.data ? sh.factors[col] : 1.f;
            float v = sum_of_classes(&sh.sums[0][0][i], TILE_ROWS * NT) * factor;
            if (at.w2) v = gated(job.glu, v, sum_of_classes(&sh.sums[1][0][i], TILE_ROWS * NT) * factor);
            at.y(job, col)[m] = v + b;
        }
        if (tile + 1 < tile1) __syncthreads();
    }
}

#define ENTRY(NT, BLOCKS)                                                   \
    extern "C" __global__ void __launch_bounds__(VEC_THREADS, BLOCKS)       \
        mul_mat_vec_mixed_##NT(const __grid_constant__ Jobs<VecJob> jobs) { \
        extern __shared__ __align__(16) uint8_t memory[];                   \
        __shared__ IntShared<NT> sh;                                        \
        int block;                                                          \
        const VecJob& job = jobs.job[my_job(jobs, block)];                  \
        if (job.w.dtype == Q6_K::ID)                                        \
            block_product<Q6_K, NT>(job, block, (XGroup<NT>*)memory, sh);   \
        else                                                                \
            block_product<Q4_K, NT>(job, block, (XGroup<NT>*)memory, sh);   \
    }
ENTRY(1, 2)
ENTRY(4, 2)
ENTRY(8, 2)

// mul_mat_vec_mixed_<tokens>: the integer form of mul_mat_vec.cuh (int_product.cuh), for 1, 4
// and 8 columns. Files mix Q4_K and Q6_K, also among Q, K and V, which then share a launch.
//
// A team of eight warps has a row tile, warp w class w of its groups; a block does `split`
// row tiles. For several columns two teams share what x costs, in turns of row tiles.
// Dynamic shared memory: XGroup of as many groups as fit X_BYTES.
#include "int_tokens.cuh"
#include "mul_mat_vec.cuh"

#include <type_traits>

// Bytes for x at most, with the rest within 99 KiB, which sm_86 has.
// `src/backend/cuda/ops/mul_mat.rs` asks for them.
constexpr int X_BYTES = 72 << 10;
constexpr int TEAM_THREADS = CLASSES * WARP;
__host__ __device__ constexpr int teams(int n_tokens) { return n_tokens == 1 ? 1 : 2; }

template <class T, int NT>
using Sums = std::conditional_t<NT == 1, OneSum, TokenSums<T, NT == 1 ? 4 : NT>>;

template <int NT>
struct IntShared {
    XGroup<NT> zeros;
    float sums[teams(NT)][CLASSES][TILE_ROWS * NT];
    float squares[NT][MOST_GROUPS];
    float factors[NT];
};

// Groups first .. first + count of all columns. Two at a time: their latency would add up.
template <int NT>
__device__ __forceinline__ void stage(const VecJob& job, const Columns& at, IntShared<NT>& sh, XGroup<NT>* xs,
                                      int first, int count, int warp, int lane) {
    constexpr int AHEAD = 2, N_WARPS = teams(NT) * CLASSES;
    const float* norm = (const float*)job.norm.data;
    const int n = count * at.n;
    for (int i0 = warp; i0 < n; i0 += AHEAD * N_WARPS) {
        float v[AHEAD][8];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = i0 + j * N_WARPS;
            if (i < n) load_eight(v[j], at.x(job, i / count) + (first + i % count) * X_GROUP, lane);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = i0 + j * N_WARPS, col = i / count, g = i % count;
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
    constexpr int TEAMS = teams(NT), THREADS = TEAMS * TEAM_THREADS;
    const int lane = threadIdx.x % WARP, team = threadIdx.x / TEAM_THREADS, warp = threadIdx.x / WARP % CLASSES;
    let_next_start();
    for (int i = threadIdx.x; i < (int)(sizeof(sh.zeros) / 16); i += THREADS)
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
        load_group<T>(st, (matrix ? at.w2 : at.w) + tile * tile_bytes, g, n_groups, lane);
    };
    // The first weights are under way while x is waited for and staged.
    if (warp < n_groups && tile0 + team < tile1) load(cur, tile0 + team, 0, warp);
    wait_for_inputs();
    const int n_matrices = at.w2 ? 2 : 1;
    // This thread's output of a row tile.
    static_assert(TILE_ROWS * NT <= TEAM_THREADS, "one each");
    const int output = threadIdx.x % TEAM_THREADS, col = output / TILE_ROWS;
    for (int first_tile = tile0; first_tile < tile1; first_tile += TEAMS) {
        const int tile = first_tile + team;
        const bool has_tile = tile < tile1;
        float v[2];
        for (int m = 0; m < n_matrices; m++) {
            Sums<T, NT> sums;
            for (int first = 0; first < n_groups; first += chunk) {
                const int count = min(chunk, n_groups - first);
                if (!whole || (first_tile == tile0 && m == 0)) {
                    if (!whole) __syncthreads();
                    stage(job, at, sh, xs, first, count, team * CLASSES + warp, lane);
                    __syncthreads();
                }
                for (int g = first + warp; has_tile && g < first + count; g += CLASSES) {
                    if (!AHEAD) add_group(sums, cur, xs[g - first], sh.zeros, lane);
                    // What comes next, of this matrix, the other or the next tile.
                    typename T::Step& to = AHEAD ? next : cur;
                    if (g + CLASSES < n_groups)
                        load(to, tile, m, g + CLASSES);
                    else if (m + 1 < n_matrices)
                        load(to, tile, 1, warp);
                    else if (tile + TEAMS < tile1)
                        load(to, tile + TEAMS, 0, warp);
                    if (AHEAD) {
                        add_group(sums, cur, xs[g - first], sh.zeros, lane);
                        cur = next;
                    }
                }
            }
            if (m == 1) __syncthreads();  // the first matrix' sums were read
            float* to = sh.sums[team][warp];
            if constexpr (NT == 1) {
                sums.each_sum(lane, [&](int row, int, float x) { to[row] = x; });
            } else {
                using Tokens = Sums<T, NT>;
                float values[Tokens::VALUES];
                sums.values(values, lane);
                Tokens::each_sum(values, lane, [&](int row, int t, const float* x) {
#pragma unroll
                    for (int i = 0; i < Tokens::PIECE; i++) to[t * TILE_ROWS + row + 8 * i] = x[i];
                });
            }
            if (first_tile == tile0 && m == 0 && job.norm.data) {
                for (int i = team * CLASSES + warp; i < at.n; i += TEAMS * CLASSES) {
                    const float factor = norm_factor(sh.squares[i], n_groups, job.eps, lane);
                    if (lane == 0) sh.factors[i] = factor;
                }
            }
            __syncthreads();
            if (col < at.n) {
                const float factor = job.norm.data ? sh.factors[col] : 1.f;
                v[m] = sum_of_classes(&sh.sums[team][0][output], TILE_ROWS * NT) * factor;
            }
        }
        const int row = tile * TILE_ROWS + output % TILE_ROWS;
        if (has_tile && col < at.n && row < job.w.ne[1]) {
            const float b = job.b.data ? row_of<float>(job.b, job.b.ne[1] == 1 ? 0 : at.t0 + col)[row] : 0.f;
            at.y(job, col)[row] = (at.w2 ? gated(job.glu, v[0], v[1]) : v[0]) + b;
        }
        if (first_tile + TEAMS < tile1) __syncthreads();
    }
}

#define ENTRY(NT, BLOCKS)                                                        \
    extern "C" __global__ void __launch_bounds__(teams(NT) * TEAM_THREADS, BLOCKS) \
        mul_mat_vec_mixed_##NT(const __grid_constant__ Jobs<VecJob> jobs) {      \
        extern __shared__ __align__(16) uint8_t memory[];                        \
        __shared__ IntShared<NT> sh;                                             \
        int block;                                                               \
        const VecJob& job = jobs.job[my_job(jobs, block)];                       \
        if (job.w.dtype == Q6_K::ID)                                             \
            block_product<Q6_K, NT>(job, block, (XGroup<NT>*)memory, sh);        \
        else                                                                     \
            block_product<Q4_K, NT>(job, block, (XGroup<NT>*)memory, sh);        \
    }
ENTRY(1, 2)
ENTRY(4, 1)
ENTRY(8, 1)

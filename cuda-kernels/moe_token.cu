// Experts of few tokens: MOE_ROUTE with gate and up of the chosen, and down with MOE_SUM, as
// two launches of Q4_K or Q6_K weights (int_product.cuh) instead of four, with their bits.
//
//   moe_up_<n>  operands of moe_route_<n> (moe.cu) and of mul_mat_vec_mixed_1 with ids and a
//               gate: every block routes for itself, and block 0 writes what MOE_ROUTE gives
//               grid = (blocks, tokens), block UP_THREADS; a block takes pairs (expert, row
//               tile) in turns
//   moe_down    operands of mul_mat_vec_mixed_1 with ids and of moe_sum; k <= 2,048
//               grid = (row tiles, tokens), block DOWN_THREADS
//
// Both are short and wait on what is just being written: what counts is how many
// instructions a warp has one after the other and how often it waits for memory. So each
// warp has one group of one row at a time, several on their way, and blocks meet seldom. What
// comes next starts when the products are done: beside them it slows them down.
#include "async_copy.cuh"
#include "int_product.cuh"
#include "mul_mat_vec.cuh"
#include "route.cuh"

struct MoeUp {
    View route, logits;
    int n_used, norm;
    VecJob job;
};

struct MoeDown {
    VecJob job;
    View dst, weights, b;
};

constexpr int UP_WARPS = 2 * CLASSES, UP_THREADS = UP_WARPS * WARP;
constexpr int UNDER_WAY = 3;   // groups of a warp
constexpr int SLOT = 3360;     // bytes of a group: of Q6_K, the larger
constexpr int ITEMS = 4;       // pairs whose sums are kept until blocks meet
constexpr int MOST_USED = 64;
static_assert(Q6_K::GROUP <= SLOT && Q4_K::GROUP <= SLOT, "a group fits");

struct UpShared {
    XGroup<1> zeros;
    float sums[ITEMS][2][CLASSES][TILE_ROWS];
    float squares[MOST_GROUPS];
    float factor;
    int ids[MOST_USED];
};

// All groups of a token's x, by warps 0 .. n_warps - 1.
__device__ __forceinline__ void stage_row(const VecJob& job, const float* x, XGroup<1>* xs, float* squares, int warp,
                                          int n_warps, int lane) {
    const float* norm = (const float*)job.norm.data;
    for (int g = warp; g < job.w.ne[0] / X_GROUP; g += n_warps) {
        float v[8];
        load_eight(v, x + g * X_GROUP, lane);
        if (norm) {
            float w[8];
            load_eight(w, norm + g * X_GROUP, lane);
            const float sum = sum_of_squares(v);
            if (lane == 0) squares[g] = sum;
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] *= w[i];
        }
        stage_group(xs[g], 0, v, lane);
    }
}

template <class T>
__device__ __forceinline__ typename T::Step step_of(const uint8_t* group, int lane) {
    if constexpr (T::ID == Q6_K::ID)
        return q6_step(group, lane);
    else
        return q4_step(group, lane);
}

// The products of a block's pairs, of which x and ids are there.
template <class T>
__device__ __forceinline__ void multiply_pairs(const MoeUp& p, UpShared& sh, const XGroup<1>* xs, uint8_t* slots,
                                               int token) {
    const VecJob& job = p.job;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, matrix = warp / CLASSES, cls = warp % CLASSES;
    const int n_groups = job.w.ne[0] / X_GROUP, n_tiles = (job.w.ne[1] + TILE_ROWS - 1) / TILE_ROWS;
    const uint32_t tile_bytes = n_groups * T::GROUP;
    const int n_pairs = p.n_used * n_tiles;
    const int n_items = ((int)blockIdx.x < n_pairs) ? (n_pairs - 1 - blockIdx.x) / gridDim.x + 1 : 0;
    const char* weights = matrix ? job.w2.data : job.w.data;
    slots += warp * UNDER_WAY * SLOT;
    // The next group to ask for.
    int ask_item = 0, ask_group = cls, ask_slot = 0;
    const uint8_t* from = nullptr;
    auto tile_of = [&](int item) {
        const int pair = blockIdx.x + item * gridDim.x, u = pair / n_tiles;
        const int e = min(max(sh.ids[u], 0), job.w.ne[2] - 1);
        return (const uint8_t*)weights + (size_t)e * n_tiles * tile_bytes + (size_t)(pair - u * n_tiles) * tile_bytes;
    };
    auto ask = [&] {
        if (ask_group >= n_groups) ask_group = cls, ask_item++, from = nullptr;
        if (ask_item < n_items && cls < n_groups) {
            if (!from) from = tile_of(ask_item);
            const uint8_t* group = from + ask_group * T::GROUP;
            uint8_t* to = slots + ask_slot * SLOT;
#pragma unroll
            for (int i = 0; i < T::GROUP; i += WARP * 16)
                if (i + WARP * 16 <= T::GROUP || i + lane * 16 < T::GROUP)
                    copy_async(to + i + lane * 16, group + i + lane * 16, true);
            ask_group += CLASSES;
            if (++ask_slot == UNDER_WAY) ask_slot = 0;
        }
        copies_commit();
    };
    for (int i = 0; i < UNDER_WAY; i++) ask();
    int slot = 0;
    for (int first = 0; first < n_items; first += ITEMS) {
        const int count = min(ITEMS, n_items - first);
        for (int i = 0; i < count; i++) {
            OneSum sum;
            for (int g = cls; g < n_groups; g += CLASSES) {
                copies_wait<UNDER_WAY - 1>();
                __syncwarp();
                const typename T::Step st = step_of<T>(slots + slot * SLOT, lane);
                __syncwarp();
                if (++slot == UNDER_WAY) slot = 0;
                ask();
                add_group(sum, st, xs[g], sh.zeros, lane);
            }
            float* to = sh.sums[i][matrix][cls];
            sum.each_sum(lane, [&](int row, int, float v) { to[row] = v; });
        }
        __syncthreads();
        if (first + ITEMS >= n_items) let_next_start();
        const int i = threadIdx.x / TILE_ROWS;
        if (i < count) {
            const int pair = blockIdx.x + (first + i) * gridDim.x, u = pair / n_tiles;
            const int r = threadIdx.x % TILE_ROWS, row = (pair - u * n_tiles) * TILE_ROWS + r;
            const float gate = sum_of_classes(&sh.sums[i][0][0][r], TILE_ROWS) * sh.factor;
            const float up = sum_of_classes(&sh.sums[i][1][0][r], TILE_ROWS) * sh.factor;
            if (row < job.w.ne[1]) row_of<float>(job.y, u, token)[row] = gated(job.glu, gate, up) + 0.f;
        }
        if (first + ITEMS < n_items) __syncthreads();
    }
}

template <int N>
__device__ __forceinline__ void moe_up(const MoeUp& p) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ UpShared sh;
    const VecJob& job = p.job;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, token = blockIdx.y;
    const int n_groups = job.w.ne[0] / X_GROUP;
    uint8_t* slots = memory;
    XGroup<1>* xs = (XGroup<1>*)(memory + UP_WARPS * UNDER_WAY * SLOT);
    for (int i = threadIdx.x; i < (int)(sizeof(sh.zeros) / 16); i += UP_THREADS)
        ((uint4*)&sh.zeros)[i] = make_uint4(0, 0, 0, 0);
    const bool live = token < dim(job.x, 2);
    wait_for_inputs();
    if (!live) return;
    if (warp == UP_WARPS - 1) {
        int* route = row_of<int>(p.route, token);
        route_row<N>(row_of<const float>(p.logits, token), p.logits.ne[0], p.n_used, p.norm,
                     [&](int u, int id, float weight) {
                         sh.ids[u] = id;
                         if (blockIdx.x == 0) route[u] = id, ((float*)route)[p.n_used + u] = weight;
                     });
    } else {
        stage_row(job, row_of<float>(job.x, 0, token), xs, sh.squares, warp, UP_WARPS - 1, lane);
    }
    __syncthreads();
    if (warp == 0) {
        const float factor = job.norm.data ? norm_factor(sh.squares, n_groups, job.eps, lane) : 1.f;
        if (lane == 0) sh.factor = factor;  // read behind the next barrier
    }
    if (job.w.dtype == Q6_K::ID)
        multiply_pairs<Q6_K>(p, sh, xs, slots, token);
    else
        multiply_pairs<Q4_K>(p, sh, xs, slots, token);
}

#define MOE_UP(n)                                                  \
    extern "C" __global__ void __launch_bounds__(UP_THREADS, 1)    \
        moe_up_##n(const __grid_constant__ MoeUp p) {              \
        moe_up<n>(p);                                              \
    }

MOE_UP(4)
MOE_UP(8)

constexpr int DOWN_WARPS = 24, DOWN_THREADS = DOWN_WARPS * WARP;

struct DownShared {
    XGroup<1> zeros, x[DOWN_WARPS];
    float sums[MOST_USED][CLASSES][TILE_ROWS];
    float weights[MOST_USED];
};

template <class T>
__device__ __forceinline__ void multiply_down(const MoeDown& p, DownShared& sh, int token) {
    const VecJob& job = p.job;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int n_groups = job.w.ne[0] / X_GROUP, n_tiles = (job.w.ne[1] + TILE_ROWS - 1) / TILE_ROWS;
    const size_t tile_bytes = (size_t)n_groups * T::GROUP;
    for (int pair = warp; pair < job.y.ne[1] * n_groups; pair += DOWN_WARPS) {
        const int u = ratio(pair, n_groups), g = pair - u * n_groups;
        const int id = row_of<int>(job.ids, token)[u];
        float v[8];
        load_eight(v, row_of<float>(job.x, u, token) + g * X_GROUP, lane);
        const int e = min(max(id, 0), job.w.ne[2] - 1);
        typename T::Step st;
        load_group<T>(st, (const uint8_t*)job.w.data + ((size_t)e * n_tiles + blockIdx.x) * tile_bytes, g, n_groups,
                      lane);
        stage_group(sh.x[warp], 0, v, lane);
        __syncwarp();
        OneSum sum;
        add_group(sum, st, sh.x[warp], sh.zeros, lane);
        float* to = sh.sums[u][g];
        sum.each_sum(lane, [&](int row, int, float s) { to[row] = s; });
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(DOWN_THREADS, 1) moe_down(const __grid_constant__ MoeDown p) {
    __shared__ DownShared sh;
    const VecJob& job = p.job;
    const int token = blockIdx.y, n_used = job.y.ne[1];
    for (int i = threadIdx.x; i < (int)(sizeof(sh.zeros) / 16); i += DOWN_THREADS)
        ((uint4*)&sh.zeros)[i] = make_uint4(0, 0, 0, 0);
    // Classes without a group add nothing.
    for (int i = threadIdx.x; i < n_used * CLASSES * TILE_ROWS; i += DOWN_THREADS) sh.sums[0][0][i] = 0.f;
    __syncthreads();
    const bool live = token < dim(job.x, 2);
    wait_for_inputs();
    if (!live) return;
    if (threadIdx.x < n_used) sh.weights[threadIdx.x] = *row_of<const float>(p.weights, threadIdx.x, token);
    const int row = blockIdx.x * TILE_ROWS + threadIdx.x;
    const bool mine = threadIdx.x < TILE_ROWS && row < job.w.ne[1];
    const float add = mine && p.b.data ? row_of<const float>(p.b, token)[row] : 0.f;
    if (job.w.dtype == Q6_K::ID)
        multiply_down<Q6_K>(p, sh, token);
    else
        multiply_down<Q4_K>(p, sh, token);
    let_next_start();
    __syncthreads();
    // An expert's rows take the place of its first class.
    for (int i = threadIdx.x; i < n_used * TILE_ROWS; i += DOWN_THREADS) {
        float* s = &sh.sums[i / TILE_ROWS][0][i % TILE_ROWS];
        *s = sum_of_classes(s, TILE_ROWS) + 0.f;
    }
    __syncthreads();
    if (!mine) return;
    float sum = 0.f;
#pragma unroll 8
    for (int u = 0; u < n_used; u++) sum = fmaf(sh.weights[u], sh.sums[u][0][threadIdx.x], sum);
    row_of<float>(p.dst, token)[row] = p.b.data ? sum + add : sum;
}

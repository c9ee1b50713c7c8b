// mul_mat_vec_cluster_<tokens>: as mul_mat_vec_mixed_<tokens> (mul_mat_vec_int.cu), with its
// bits, for up to 4, 8 and 16 columns, on GPUs whose blocks form clusters (sm_90).
//
// A cluster of eight blocks does `split` row tiles. Block i has class i of the groups of all
// of them (int_product.cuh), so it needs an eighth of x. Its warps take row tiles in turns;
// each brings its weights by bulk copies into a ring of its own, well before x is there,
// and multiplies without meeting other warps. Warp w of the eight blocks have the same row
// tile: each sends the others what they finish of it, so that a warp gets the eight classes
// of an eighth of the row tile, adds them up and writes y.
//
//   grid = (8 blocks for `split` row tiles of a job, groups of columns); no experts
//   dynamic shared memory: XGroup of the groups of a class; with a norm the sums of squares
//   of all groups and columns; for each warp one or two Mails, Scales (of Q4_K) and room for
//   at least two groups. `src/backend/cuda/ops/mul_mat_cluster.rs` asks for it
#include "cluster_groups.cuh"
#include "mul_mat_vec.cuh"

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

constexpr int CLUSTER = CLASSES;
// 96 registers a thread. 15 clusters are there at once on an H200: 256 row tiles (as the
// rows of 14,336 values of an 8B have) are 18 a cluster, which shall be done at once.
constexpr int WARPS = 20, THREADS = WARPS * WARP;
constexpr int MOST_SLOTS = 4;

// What a warp finishes of a row tile: values 16 t + 2 r + h, for token t and row r + 8 h,
// are shared out evenly; for each block what it has of this one's share.
template <int NT>
struct __align__(16) Mail {
    static constexpr int SHARE = TILE_ROWS * NT / CLUSTER;
    static_assert(SHARE <= WARP, "one a lane");
    float sums[CLUSTER][SHARE];
};

// The groups that a warp brings into its ring: units of n_mine groups, of W and W2 in turns
// or, of one matrix, every other one. Lies in shared memory, where it takes no registers;
// lane 0 has it.
struct __align__(16) Feed {
    const uint8_t *from, *start, *other;  // now, of this unit and of the next
    size_t step;                          // of a unit to that after the next
    int left, units_left, n_mine;

    template <class T>
    __device__ __forceinline__ void next(uint32_t slot, uint64_t* full) {
        if (units_left <= 0) return;
        barrier_expect(full, T::GROUP);
        bulk_copy(slot, from, T::GROUP, full);
        from += CLASSES * T::GROUP;
        if (--left > 0) return;
        left = n_mine, units_left--;
        from = other, other = start + step, start = from;
    }
};

template <int NT>
struct ClusterShared {
    XGroup<NT> zeros;
    float factors[NT];
    Feed feed[WARPS];
    uint64_t full[WARPS][MOST_SLOTS], mail[WARPS][2];
    uint64_t squared, factored;
};

// This block's groups of x, rank + 8 i, of n columns from t0 on; squares go to all blocks.
// Several at a time: their latency would add up.
template <int NT>
__device__ __forceinline__ void stage(const VecJob& job, ClusterShared<NT>& sh, XGroup<NT>* xs, float* squares, int rank,
                                      int t0, int n, int warp, int lane) {
    constexpr int AHEAD = 3;  // as the registers allow
    const int n_groups = job.w.ne[0] / X_GROUP, n_items = (n_groups - rank + CLASSES - 1) / CLASSES * NT;
    const float* norm = (const float*)job.norm.data;
    const char* x = job.x.data + t0 * job.x.nb[1];
    for (int i0 = warp; i0 < n_items; i0 += AHEAD * WARPS) {
        float v[AHEAD][8], w[AHEAD][8];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = i0 + j * WARPS, col = i % NT, g = rank + i / NT * CLASSES;
            if (i >= n_items || col >= n) continue;
            load_eight(v[j], (const float*)(x + col * job.x.nb[1]) + g * X_GROUP, lane);
            if (norm) load_eight(w[j], norm + g * X_GROUP, lane);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = i0 + j * WARPS, col = i % NT, g = rank + i / NT * CLASSES;
            if (i >= n_items || col >= n) continue;
            if (norm) {
                const float sum = sum_of_squares(v[j]);
                const uint32_t to = shared_at(squares + col * n_groups + g);
                if (lane < CLUSTER) send<1>(shared_of(to, lane), &sum, shared_of(shared_at(&sh.squared), lane));
#pragma unroll
                for (int e = 0; e < 8; e++) v[j][e] *= w[j][e];
            }
            stage_group(xs[i / NT], col, v[j], lane);
        }
    }
}

template <class T, int NT>
__device__ __forceinline__ void cluster_product(const VecJob& job, int block, uint8_t* memory, ClusterShared<NT>& sh) {
    using Sums = TokenSums<T, NT>;
    constexpr int SHARE = Mail<NT>::SHARE;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rank = rank_in_cluster();
    let_next_start();
    const int n_groups = job.w.ne[0] / X_GROUP, n_matrices = job.w2.data ? 2 : 1;
    const int n_mine = (n_groups - rank + CLASSES - 1) / CLASSES;  // 0 where there are few
    XGroup<NT>* xs = (XGroup<NT>*)memory;
    float* squares = (float*)(xs + (n_groups + CLASSES - 1) / CLASSES);
    // Of one unit a warp there is one to read, of more one comes meanwhile.
    Mail<NT>* mails = (Mail<NT>*)(squares + (job.norm.data ? NT * n_groups : 0));
    Scales* scales = (Scales*)(mails + WARPS * (n_matrices == 1 && job.split <= WARPS ? 1 : 2));
    uint8_t* ring = (uint8_t*)(scales + (T::ID == Q4_K::ID ? WARPS : 0));
    const int slots = min((int)(dynamic_bytes() - (ring - memory)) / (WARPS * T::GROUP), MOST_SLOTS);
    ring += warp * slots * T::GROUP;
    const int n_tiles = (job.w.ne[1] + TILE_ROWS - 1) / TILE_ROWS;
    // Row tiles tile0 + warp, + WARPS ..; of each a unit a matrix.
    const int tile0 = block / CLUSTER * job.split, tile1 = min(tile0 + job.split, n_tiles);
    const int n_units = max((tile1 - tile0 - warp + WARPS - 1) / WARPS, 0) * n_matrices;
    if (lane == 0) {
        for (int i = 0; i < slots; i++) barrier_init(&sh.full[warp][i], 1);
        for (int i = 0; i < 2; i++) barrier_init(&sh.mail[warp][i], 1);
        if (warp == 0) barrier_init(&sh.squared, 1), barrier_init(&sh.factored, NT);
        barriers_ready();
        for (int i = 0; i < 2; i++) barrier_expect(&sh.mail[warp][i], CLUSTER * SHARE * 4);
        const size_t tile_bytes = (size_t)n_groups * T::GROUP;
        const size_t first = (tile0 + warp) * tile_bytes + rank * T::GROUP;
        Feed& feed = sh.feed[warp];
        feed.from = feed.start = (const uint8_t*)job.w.data + first;
        feed.other = n_matrices == 2 ? (const uint8_t*)job.w2.data + first : feed.from + WARPS * tile_bytes;
        feed.step = WARPS * tile_bytes * (n_matrices == 2 ? 1 : 2);
        feed.left = feed.n_mine = n_mine;
        feed.units_left = n_mine > 0 ? n_units : 0;
        // Weights come, whoever still writes x.
        for (int i = 0; i < slots; i++) feed.template next<T>(shared_at(ring) + i * T::GROUP, &sh.full[warp][i]);
    }
    __syncwarp();
    cluster_arrive();
    if (T::ID == Q6_K::ID)
        for (int i = threadIdx.x; i < (int)(sizeof(sh.zeros) / 16); i += THREADS)
            ((uint4*)&sh.zeros)[i] = make_uint4(0, 0, 0, 0);
    const int t0 = blockIdx.y * NT, n = max(min(dim(job.x, 1) - t0, NT), 0);
    if (threadIdx.x == 0) barrier_expect(&sh.squared, n * n_groups * 4);
    wait_for_inputs();
    cluster_wait();
    stage(job, sh, xs, squares, rank, t0, n, warp, lane);
    __syncthreads();

    // The norm's factor of column `warp`, once all blocks have sent their sums of squares.
    auto find_factor = [&] {
        if (!job.norm.data || warp >= NT) return;
        barrier_wait(&sh.squared, 0);
        const float factor = norm_factor(squares + warp * n_groups, n_groups, job.eps, lane);
        if (lane == 0) {
            sh.factors[warp] = factor;
            barrier_arrive(&sh.factored);
        }
    };
    if (n_units == 0) find_factor();
    // Adds up what came of a unit and, after the last of a row tile, writes y.
    float gate = 0.f;
    auto finish = [&](int unit) {
        const int tile = tile0 + warp + WARPS * (n_matrices == 2 ? unit / 2 : unit);
        const int at = rank_in_cluster() * SHARE + lane, col = at / TILE_ROWS;
        const int row = tile * TILE_ROWS + at % TILE_ROWS / 2 + at % 2 * 8;
        const bool live = lane < SHARE && col < n && row < job.w.ne[1], last = n_matrices == 1 || unit % 2 == 1;
        float b = 0.f;
        if (live && last && job.b.data) b = row_of<float>(job.b, job.b.ne[1] == 1 ? 0 : t0 + col)[row];
        if (job.norm.data) barrier_wait(&sh.factored, 0);
        uint64_t* barrier = &sh.mail[warp][unit % 2];
        barrier_wait(barrier, unit / 2 % 2);
        if (lane == 0) barrier_expect(barrier, CLUSTER * SHARE * 4);  // for the unit after the next
        if (live) {
            float v = sum_of_classes(&mails[unit % 2 * WARPS + warp].sums[0][lane], SHARE);
            if (job.norm.data) v *= sh.factors[col];
            if (last) row_of<float>(job.y, t0 + col)[row] = (n_matrices == 2 ? gated(job.glu, gate, v) : v) + b;
            gate = v;
        }
        __syncwarp();
    };
    int slot = 0;
    uint32_t parity = 0;
    for (int unit = 0; unit < n_units; unit++) {
        Sums sums;
        for (int i = 0; i < n_mine; i++) {
            uint8_t* group = ring + slot * T::GROUP;
            barrier_wait(&sh.full[warp][slot], parity);
            if constexpr (T::ID == Q6_K::ID)
                add_group(sums, Q6Ahead(group, lane), xs[i], sh.zeros, lane);
            else
                add_group(sums, Q4Ahead(group, scales[warp], lane), xs[i], sh.zeros, lane);
            __syncwarp();
            if (lane == 0) sh.feed[warp].template next<T>(shared_at(group), &sh.full[warp][slot]);
            if (++slot == slots) slot = 0, parity ^= 1;
        }
        if (unit == 0) find_factor();
        // Also says that all of the warp have read what came of the unit before the last, so
        // that others may send their next one once they have this one.
        if (unit > 0) finish(unit - 1);
        float values[Sums::VALUES];
        sums.values(values, lane);
        Sums::each_sum(values, lane, [&](int row, int token, const float* v) {
            const int at = token * TILE_ROWS + row % 8 * 2 + row / 8, to = at / SHARE;
            const float* box = &mails[unit % 2 * WARPS + warp].sums[rank_in_cluster()][at % SHARE];
            send<Sums::PIECE>(shared_of(shared_at(box), to), v, shared_of(shared_at(&sh.mail[warp][unit % 2]), to));
        });
    }
    if (n_units > 0) finish(n_units - 1);
}

#define ENTRY(NT)                                                                             \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)  \
        mul_mat_vec_cluster_##NT(const __grid_constant__ Jobs<VecJob> jobs) {                 \
        extern __shared__ __align__(128) uint8_t memory[];                                    \
        __shared__ ClusterShared<NT> sh;                                                      \
        int block;                                                                            \
        const VecJob& job = jobs.job[my_job(jobs, block)];                                    \
        if (job.w.dtype == Q6_K::ID)                                                          \
            cluster_product<Q6_K, NT>(job, block, memory, sh);                                \
        else                                                                                  \
            cluster_product<Q4_K, NT>(job, block, memory, sh);                                \
    }
ENTRY(4)
ENTRY(8)
ENTRY(16)

#endif

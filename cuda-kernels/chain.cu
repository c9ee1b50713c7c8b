// chain: matrix products of one token that follow each other (output, gate and up, down,
// the next layer's Q, K and V) in one launch, each reading what the one before wrote.
//
// A block stays on its multiprocessor and has three roles. One thread copies weights into
// slots of shared memory, a step (some groups of a row tile) each, without ever waiting for
// x, so memory is busy while blocks meet between products. Two teams of eight warps
// multiply, a row tile each in turns, and in it one group of a step each warp
// (int_product.cuh). One warp adds their sums up, finishes rows and meets the other blocks.
// Bits are those of mul_mat_vec_mixed_1 (mul_mat_vec_int.cu), launch by launch.
//
//   phases  n_phases <= CHAIN_PHASES products; `src/backend/cuda/chain.rs` packs them
//   early   whether the next launch may start during the last product or only after it
//   state   [2] zeros before and after: arrivals of blocks, blocks that are done
//   grid = blocks that are resident together, block CHAIN_THREADS
//   dynamic shared memory: TEAMS * n_slots * SLOT_BYTES, then XGroup<1> of the longest k
#include "int_product.cuh"
#include "math.cuh"
#include "ring.cuh"

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

constexpr int TEAMS = 2, CHAIN_WARPS = TEAMS * CLASSES, CHAIN_THREADS = (CHAIN_WARPS + 2) * WARP;
constexpr int CHAIN_PHASES = 8, CHAIN_JOBS = 4;
constexpr int Q4_GROUPS = 8, Q6_GROUPS = 6;  // of a step
constexpr int SLOT_BYTES = 20224;            // whole lines of 128
static_assert(Q4_GROUPS * Q4_K::GROUP <= SLOT_BYTES && Q6_GROUPS * Q6_K::GROUP <= SLOT_BYTES, "a step");
constexpr int MOST_SLOTS = 6;  // a team
constexpr int HANDED = 2;      // row tiles whose sums wait to be finished, a team

// y = W x, or act(W x) * (W2 x), plus b; the rows of one matrix.
struct ChainJob {
    const uint8_t *w, *w2;  // w2 null: no gate
    const float* b;         // [m] or null
    float* y;               // [m]
    int first_tile, m;
    int q6;   // Q6_K instead of Q4_K
    int glu;  // Glu
};

// Products of the same x.
struct ChainPhase {
    const float *x, *norm;  // [k]; norm null: x as it is
    const int* live;        // 0 there: no token, nothing is done
    int n_groups;           // k / 256
    float eps;
    int n_tiles, n_jobs;
    ChainJob job[CHAIN_JOBS];
};
static_assert(sizeof(ChainPhase) == 40 + CHAIN_JOBS * 48, "the host packs this struct");

// What a slot holds.
struct __align__(16) Step {
    uint16_t phase, first, n;  // groups first .. first + n
    uint8_t q6, closes;        // the last of a row tile
    uint8_t opens;             // the first of a phase: how many teams have one
    uint8_t ends;              // nothing follows
    uint8_t pad[6];
};

// As an argument of the kernel: in memory it would take a trip there before anything else.
struct ChainPhases {
    ChainPhase at[CHAIN_PHASES];
};

struct ChainShared {
    int n_tiles[CHAIN_PHASES];  // 0 where there is no token
    uint64_t full[TEAMS][MOST_SLOTS], empty[TEAMS][MOST_SLOTS], handed[TEAMS][HANDED], taken[TEAMS][HANDED];
    Step step[TEAMS][MOST_SLOTS];
    float sums[TEAMS][HANDED][CLASSES][TILE_ROWS];
    float squares[MOST_GROUPS];
    uint64_t ready[CHAIN_PHASES];  // x of a phase may be read; waited for once
    XGroup<1> zeros;
};

// A place in a ring of barriers and the parity it waits for.
struct Turn {
    int at;
    uint32_t parity;
    __device__ __forceinline__ void next(int n) {
        if (++at == n) at = 0, parity ^= 1;
    }
};

// A thing of each team; the one whose turn it is comes first.
template <class T>
struct Pair {
    T mine, other;
    __device__ __forceinline__ void swap() {
        const T t = mine;
        mine = other, other = t;
    }
};

__device__ __forceinline__ const ChainJob& job_of(const ChainPhase& phase, int tile) {
    int j = 0;
    while (j + 1 < phase.n_jobs && tile >= phase.job[j + 1].first_tile) j++;
    return phase.job[j];
}

// The row tiles of a phase that this block has, W2's after W's.
struct RowTiles {
    const ChainPhase& phase;
    int n_tiles, tile = blockIdx.x;
    const uint8_t* second = nullptr;  // W2's tile, whose W came last
    int q6 = 0;

    // The next one's weights, null when there is none; `q6` says their type.
    __device__ __forceinline__ const uint8_t* next() {
        if (second) {
            const uint8_t* from = second;
            second = nullptr;
            return from;
        }
        if (tile >= n_tiles) return nullptr;
        const ChainJob& job = job_of(phase, tile);
        q6 = job.q6;
        const size_t offset = (size_t)(tile - job.first_tile) * phase.n_groups * (q6 ? Q6_K::GROUP : Q4_K::GROUP);
        tile += gridDim.x;
        if (job.w2) second = job.w2 + offset;
        return job.w + offset;
    }
};

// Copies the weights of all phases, step by step; one thread. Two row tiles at a time, one a
// team, step by step in turns: a phase opens when both teams have come.
__device__ __forceinline__ void produce(ChainShared& sh, const ChainPhases& phases, uint32_t slots, int n_slots,
                                        int n_phases) {
    int team = 0;
    Pair<Turn> turn = {{0, 1}, {0, 1}};
    auto put = [&](const Step& step, const uint8_t* from, uint32_t bytes) {
        uint64_t* full = &sh.full[team][turn.mine.at];
        barrier_wait(&sh.empty[team][turn.mine.at], turn.mine.parity);
        sh.step[team][turn.mine.at] = step;
        if (bytes) {
            barrier_expect(full, bytes);
            bulk_copy(slots + (team * n_slots + turn.mine.at) * SLOT_BYTES, from, bytes, full);
        } else {
            barrier_arrive(full);
        }
        turn.mine.next(n_slots);
    };
    auto next_team = [&] { team ^= 1, turn.swap(); };
    for (int p = 0; p < n_phases; p++) {
        RowTiles tiles{phases.at[p], sh.n_tiles[p]};
        const int n_groups = tiles.phase.n_groups;
        int opens = -1;
        while (true) {
            const uint8_t* a = tiles.next();
            const int a6 = tiles.q6;
            if (!a) break;
            const uint8_t* b = tiles.next();
            const int b6 = tiles.q6;
            if (opens < 0) opens = b ? 2 : 1;
            auto step_of = [&](const uint8_t*& from, int q6, int& first) {
                const int n = min(q6 ? Q6_GROUPS : Q4_GROUPS, n_groups - first);
                const uint32_t bytes = n * (q6 ? Q6_K::GROUP : Q4_K::GROUP);
                Step step{};
                step.phase = p, step.first = first, step.n = n, step.q6 = q6;
                step.opens = first == 0 ? opens : 0, step.closes = first + n == n_groups;
                put(step, from, bytes);
                first += n, from += bytes;
            };
            int first_a = 0, first_b = b ? 0 : n_groups;
            while (first_a < n_groups || first_b < n_groups) {
                if (first_a < n_groups) step_of(a, a6, first_a);
                next_team();
                if (first_b < n_groups) step_of(b, b6, first_b);
                next_team();
            }
            opens = 0;
            if (!b) next_team();
        }
    }
    Step step{};
    step.ends = 1;
    put(step, nullptr, 0);
    next_team();
    put(step, nullptr, 0);
}

// All groups of a phase's x into shared memory, by warp `warp` of n_warps, once the phase
// may read it. Loads come several at a time: their latency would add up.
__device__ __forceinline__ void stage_x(ChainShared& sh, const ChainPhase& phase, XGroup<1>* xs, int p, int warp, int n_warps,
                                        int lane) {
    constexpr int AHEAD = 4;
    const int n_groups = phase.n_groups;
    const float *x = phase.x, *norm = phase.norm;
    float w[8];
    if (norm && warp < n_groups) load_eight(w, norm + warp * X_GROUP, lane);
    barrier_wait(&sh.ready[p], 0);
    for (int g0 = warp; g0 < n_groups; g0 += AHEAD * n_warps) {
        float v[AHEAD][8];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int g = g0 + j * n_warps;
            if (g < n_groups) load_eight(v[j], x + g * X_GROUP, lane);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int g = g0 + j * n_warps;
            if (g >= n_groups) break;
            if (norm) {
                if (g != warp) load_eight(w, norm + g * X_GROUP, lane);
                const float squares = sum_of_squares(v[j]);
                if (lane == 0) sh.squares[g] = squares;
#pragma unroll
                for (int i = 0; i < 8; i++) v[j][i] *= w[i];
            }
            stage_group(xs[g], 0, v[j], lane);
        }
    }
}

__device__ __forceinline__ void teams_meet(int opens, int team) {
    if (opens == TEAMS)
        asm volatile("bar.sync 1, %0;" ::"n"(CHAIN_WARPS * WARP) : "memory");
    else
        asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"(CLASSES * WARP) : "memory");
}

__device__ __forceinline__ void multiply(ChainShared& sh, const ChainPhases& phases, const uint8_t* slots, int n_slots,
                                         XGroup<1>* xs, int team, int warp, int lane) {
    slots += team * n_slots * SLOT_BYTES;
    Turn slot = {0, 0}, buffer = {0, 1};
    OneSum sum;
    while (true) {
        barrier_wait(&sh.full[team][slot.at], slot.parity);
        const Step step = sh.step[team][slot.at];
        if (step.ends) return;
        if (step.opens) {
            const bool all = step.opens == TEAMS;
            stage_x(sh, phases.at[step.phase], xs, step.phase, all ? team * CLASSES + warp : warp, all ? CHAIN_WARPS : CLASSES, lane);
            teams_meet(step.opens, team);
        }
        const int mine = (warp - step.first) & (CLASSES - 1);  // class `warp` of the step's groups
        if (mine < step.n) {
            const XGroup<1>& x = xs[step.first + mine];
            const uint8_t* at = slots + slot.at * SLOT_BYTES;
            if (step.q6) {
                add_group(sum, q6_step(at + mine * Q6_K::GROUP, lane), x, sh.zeros, lane);
            } else {
                add_group(sum, q4_step(at + mine * Q4_K::GROUP, lane), x, sh.zeros, lane);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&sh.empty[team][slot.at]);
        slot.next(n_slots);
        if (!step.closes) continue;
        barrier_wait(&sh.taken[team][buffer.at], buffer.parity);
        float* to = sh.sums[team][buffer.at][warp];
        sum.each_sum(lane, [&](int row, int, float v) { to[row] = v; });
        sum = {};
        __syncwarp();
        if (lane == 0) barrier_arrive(&sh.handed[team][buffer.at]);
        buffer.next(HANDED);
    }
}

// Until all blocks have written their rows of the phases before.
__device__ __forceinline__ void meet(uint32_t* arrived, uint32_t goal, int lane) {
    __syncwarp();
    if (lane == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        uint32_t n;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(arrived) : "memory");
        } while (n < goal);
    }
    __syncwarp();
}

__device__ __forceinline__ void finish_rows(ChainShared& sh, const ChainPhases& phases, int n_phases, uint32_t* state,
                                            bool early, int lane) {
    int team = 0;
    Pair<Turn> turn = {{0, 0}, {0, 0}};
    // The sum of the next row tile.
    auto tile_sum = [&] {
        barrier_wait(&sh.handed[team][turn.mine.at], turn.mine.parity);
        const float v = sum_of_classes(&sh.sums[team][turn.mine.at][0][lane % TILE_ROWS], TILE_ROWS);
        __syncwarp();
        if (lane == 0) barrier_arrive(&sh.taken[team][turn.mine.at]);
        turn.mine.next(HANDED);
        team ^= 1, turn.swap();
        return v;
    };
    for (int p = 0; p < n_phases; p++) {
        const ChainPhase& phase = phases.at[p];
        if (p + 1 == n_phases && early) let_next_start();
        if (p == 0)
            wait_for_inputs();
        else
            meet(state, p * gridDim.x, lane);
        if (lane == 0) barrier_arrive(&sh.ready[p]);
        float factor = 1.f;
        const int n_tiles = sh.n_tiles[p];
        for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
            const ChainJob& job = job_of(phase, tile);
            const int row = (tile - job.first_tile) * TILE_ROWS + lane;
            const bool live = lane < TILE_ROWS && row < job.m;
            float b = 0.f;
            if (live && job.b) b = __ldcg(job.b + row);
            float v = tile_sum();
            if (tile == blockIdx.x && phase.norm) factor = norm_factor(sh.squares, phase.n_groups, phase.eps, lane);
            v *= factor;
            if (job.w2) v = gated(job.glu, v, tile_sum() * factor);
            if (live) job.y[row] = v + b;
        }
    }
    let_next_start();
    // The last block to be done leaves zeros for the next launch.
    if (lane == 0 && atomicAdd(state + 1, 1) == gridDim.x - 1) state[0] = state[1] = 0;
}

extern "C" __global__ void __launch_bounds__(CHAIN_THREADS, 1)
    chain(const __grid_constant__ ChainPhases phases, int n_phases, int n_slots, uint32_t* state,
          int early) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ ChainShared sh;
    XGroup<1>* xs = (XGroup<1>*)(memory + TEAMS * n_slots * SLOT_BYTES);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (threadIdx.x < n_phases) {
        const ChainPhase& phase = phases.at[threadIdx.x];
        sh.n_tiles[threadIdx.x] = phase.live && *phase.live == 0 ? 0 : phase.n_tiles;
    }
    for (int i = threadIdx.x; i < (int)(sizeof(sh.zeros) / 16); i += CHAIN_THREADS)
        ((uint4*)&sh.zeros)[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == CHAIN_THREADS - 1) {
        for (int i = 0; i < TEAMS * MOST_SLOTS; i++)
            barrier_init(sh.full[0] + i, 1), barrier_init(sh.empty[0] + i, CLASSES);
        for (int i = 0; i < TEAMS * HANDED; i++)
            barrier_init(sh.handed[0] + i, CLASSES), barrier_init(sh.taken[0] + i, 1);
        for (int i = 0; i < CHAIN_PHASES; i++) barrier_init(sh.ready + i, 1);
        barriers_ready();
    }
    __syncthreads();
    if (warp == CHAIN_WARPS) {
        if (lane == 0) produce(sh, phases, shared_at(memory), n_slots, n_phases);
    } else if (warp == CHAIN_WARPS + 1) {
        finish_rows(sh, phases, n_phases, state, early, lane);
    } else {
        multiply(sh, phases, memory, n_slots, xs, warp / CLASSES, warp % CLASSES, lane);
    }
}

#endif

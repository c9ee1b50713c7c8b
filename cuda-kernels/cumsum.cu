// CUMSUM: running sums over ne[0], x[k, ..] -> dst[k, ..]. Sums are f32 within the values
// of a warp, f64 beyond; a result is three of them, each rounded to f32: to the warp's
// first value, from there to the four, and within the four.
//
//   cumsum_warp   one warp a row, k <= 512; grid = ceil(rows / warps a block)
//   cumsum_block  one block a row, k <= 16 * blockDim.x <= 8192; grid = rows
//   cumsum_parts  ceil(k / 2048) blocks of 256 threads a row, in one pass: each takes 8
//                 values a thread, sends their sum, and finds what lies before it
//                 (decoupled look-back, Merrill and Garland 2016);
//                 grid = rows * parts, relay[rows * (parts + ceil(parts / 32))]
//   cumsum_long   the same with ceil(k / 10240) blocks, 40 values a thread
//
// In which order parts are added is fixed, whoever is ready first: the parts of a group
// of 32 by the steps of a warp's scan, then groups from the first to the last.
#include "quads.cuh"
#include "relay.cuh"
#include "row_group.cuh"

constexpr int STEP = 4 * WARP;  // values between a thread's fours

// Running sums over a warp, of which the first LANES are asked for.
template <int LANES = WARP, typename T>
__device__ __forceinline__ T warp_scan(T x) {
#pragma unroll
    for (int o = 1; o < LANES; o *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, x, o);
        if (threadIdx.x % WARP >= o) x += other;
    }
    return x;
}

// A thread's values: FOURS times four neighbours, of FOURS * STEP of the warp. After
// `add_up` each is the sum from the warp's first value to here.
template <int FOURS>
struct Piece {
    Four<float> sums[FOURS];
};

// Reads a warp's values from column `first` on. ONCE: they pass through the caches as what
// is not asked for again.
template <int FOURS, bool ONCE = false>
__device__ __forceinline__ void read_warp(Piece<FOURS>& piece, const float* in, int first, int k) {
    const bool aligned = fours(in);
    const int lane = threadIdx.x % WARP;
    if (aligned && first <= k - FOURS * STEP) {
        const float4* from = (const float4*)(in + first) + lane;
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            const float4 q = ONCE ? __ldcs(from + j * WARP) : from[j * WARP];
            piece.sums[j] = {q.x, q.y, q.z, q.w};
        }
    } else {
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            piece.sums[j] = quad_at(in, first + j * STEP + lane * 4, k, aligned, 0.f);
        }
    }
}

// The sum of a warp's values, before they are added up. A lane's fours are no neighbours:
// where values are as large as 1e35, their sum may leave f32 though no running sum does.
template <int FOURS>
__device__ __forceinline__ float sum_warp(const Piece<FOURS>& piece) {
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        const float* v = piece.sums[j].v;
        sum += (v[0] + v[1]) + (v[2] + v[3]);
    }
    return warp_sum(sum);
}

// Adds them up, and gives the sum of all.
template <int FOURS>
__device__ __forceinline__ float add_up(Piece<FOURS>& piece) {
    const int lane = threadIdx.x % WARP;
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        float* v = piece.sums[j].v;
        v[1] += v[0];
        v[2] += v[1];
        v[3] += v[2];
        const float upto = warp_scan(v[3]);
        // Not `upto - v[3]`, which is NaN where the sum is infinite.
        const float lower = __shfl_up_sync(ALL_LANES, upto, 1);
        const float before = lane > 0 ? sum + lower : sum;
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] += before;
        sum += __shfl_sync(ALL_LANES, upto, WARP - 1);
    }
    return sum;
}

// Writes them, after `before`.
template <int FOURS, bool ONCE = false>
__device__ __forceinline__ void put_warp(const Piece<FOURS>& piece, double before, float* out, int first, int k) {
    const bool aligned = fours(out), whole = aligned && first <= k - FOURS * STEP;
    const float base = (float)before;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        const int c = first + j * STEP + threadIdx.x % WARP * 4;
        Four<float> y;
#pragma unroll
        for (int i = 0; i < 4; i++) y.v[i] = base + piece.sums[j].v[i];
        if (whole || (aligned && c + 3 < k)) {
            const float4 q = {y.v[0], y.v[1], y.v[2], y.v[3]};
            if (ONCE) __stcs((float4*)(out + c), q);
            else *(float4*)(out + c) = q;
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (c + i < k) out[c + i] = y.v[i];
        }
    }
}

// From the sum of each warp: for warp 0 the sum of the block, and in `upto`, shared memory
// to be read after a barrier, the sums up to the end of each warp. Blocks have at most
// WARPS warps.
template <int WARPS = WARP>
__device__ __forceinline__ double scan_block(float of_warp, double* upto) {
    __shared__ float sums[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) sums[warp] = of_warp;
    __syncthreads();
    if (warp > 0) return 0.;
    const double x = warp_scan<WARPS>(lane < blockDim.x / WARP ? (double)sums[lane] : 0.);
    upto[lane] = x;
    return __shfl_sync(ALL_LANES, x, WARPS - 1);
}

extern "C" __global__ void cumsum_warp(View dst, View x) {
    start();
    const long long r = WarpRow::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const int k = dim(x, 0);
    Piece<4> piece;
    read_warp(piece, row_of<const float>(x, at.i1, at.i2, at.i3), 0, k);
    add_up(piece);
    put_warp(piece, 0., row_of<float>(dst, at.i1, at.i2, at.i3), 0, k);
}

extern "C" __global__ void cumsum_block(View dst, View x) {
    start();
    const RowIndex at = row_index(dst, blockIdx.x);
    if (!is_live(dst, at)) return;
    __shared__ double upto[WARP];
    const int warp = threadIdx.x / WARP, first = warp * (4 * STEP), k = dim(x, 0);
    Piece<4> piece;
    read_warp(piece, row_of<const float>(x, at.i1, at.i2, at.i3), first, k);
    scan_block(add_up(piece), upto);
    __syncthreads();
    const double before = warp > 0 ? upto[warp - 1] : 0.;
    put_warp(piece, before, row_of<float>(dst, at.i1, at.i2, at.i3), first, k);
}

// The sum of a row up to the end of a group (`whole`), or of the group alone when all its
// parts are there first: each is sent without waiting for anything. `upto` wants the
// former.
__device__ __forceinline__ double group_sum(const Slot* parts, const Slot* group, unsigned launch, bool upto,
                                            bool& whole) {
    const int lane = threadIdx.x % WARP;
    uint64_t bits_whole, bits_part = 0;
    bool has_part = false;
    for (;;) {
        const bool has_whole = received(group, launch, bits_whole);
        if (!upto && !has_part) has_part = received(parts + lane, launch, bits_part);
        whole = __shfl_sync(ALL_LANES, (int)has_whole, 0);
        if (whole) return __shfl_sync(ALL_LANES, as_double(bits_whole), 0);
        if (__all_sync(ALL_LANES, has_part)) break;
    }
    return __shfl_sync(ALL_LANES, warp_scan(as_double(bits_part)), WARP - 1);
}

// What lies before part `p` of a row, whose own sum is sent already and which warp 0 has as
// `own`. A barrier lies within. `parts` are the slots of the row's parts, `groups` those of
// the sums up to the end of each group. Warp 0 looks at its own group, warp w at the w-th
// back, and, unless one of the warps finds a whole, in up to ROUNDS at those before. The
// farthest of all waits for the sum up to there.
template <int WARPS, int ROUNDS>
__device__ __forceinline__ double look_back(const Slot* parts, Slot* groups, int p, double own, unsigned launch) {
    constexpr int OTHERS = WARPS - 1, MOST = OTHERS * ROUNDS;
    static_assert(MOST < WARP, "a lane for each group");
    __shared__ double sums[MOST + 1], in_group[2];  // sums by how many groups back, from 1
    __shared__ bool wholes[MOST + 1];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int group = p / WARP, mine = p % WARP, back = min(MOST, group);
    if (warp == 0) {
        double x = lane < mine ? as_double(receive(parts + group * WARP + lane, launch)) : 0.;
        x = warp_scan(lane == mine ? own : x);
        if (lane == mine) in_group[1] = x;
        if (lane == mine - 1) in_group[0] = x;
        if (lane == 0 && mine == 0) in_group[0] = 0.;
    }
    unsigned found = 0;
    int seen = 0;
#pragma unroll 1
    do {
        const int d = seen + warp, g = group - d;
        if (warp > 0 && d <= back) {
            bool whole;
            const double sum = group_sum(parts + g * WARP, groups + g, launch, d == back && g > 0, whole);
            if (lane == 0) {
                sums[d] = sum;
                wholes[d] = whole;
            }
        }
        seen = min(seen + OTHERS, back);
        __syncthreads();
        found = __ballot_sync(ALL_LANES, lane > 0 && lane <= seen && wholes[lane]);
    } while (found == 0 && seen < back);
    const int far = found != 0 ? __ffs(found) - 1 : back + 1;
    double before = found != 0 ? sums[far] : 0.;
#pragma unroll 1
    for (int d = far - 1; d > 0; d--) before += sums[d];
    if (threadIdx.x == 0 && mine == WARP - 1) send(groups + group, launch, as_bits(before + in_group[1]));
    return before + in_group[0];
}

// Where a block writes: a row of k values, from column `first` on.
struct Target {
    float* out;
    int first, k;
};

// What a block of THREADS does that takes FOURS fours a thread and looks back in ROUNDS.
template <int THREADS, int FOURS, int ROUNDS, bool ONCE>
__device__ __forceinline__ void scan_part(const View& dst, const View& x, Relay* relay, int parts) {
    constexpr int OF_WARP = FOURS * STEP, WARPS = THREADS / WARP, OF_BLOCK = WARPS * OF_WARP;
    const Turn turn = draw_turn(relay);
    const int r = turn.block / parts, p = turn.block - r * parts, k = dim(x, 0);
    const RowIndex at = row_index(dst, r);
    const int warp = threadIdx.x / WARP, from = p * OF_BLOCK, first = from + warp * OF_WARP;
    // Beyond a cut row's end there is nothing, and nobody asks for its sum.
    const bool there = is_live(dst, at) && from < k;
    const float* in = row_of<const float>(x, at.i1, at.i2, at.i3);
    let_next_start();
    if (there) prefetch_values(in + from, min(OF_BLOCK, k - from), threadIdx.x, THREADS);
    wait_for_inputs();
    if (!there) return;
    __shared__ Target to;  // not in registers, which values fill
    if (threadIdx.x == 0) to = {row_of<float>(dst, at.i1, at.i2, at.i3), from, k};
    Slot* slots = relay->slots + (long long)r * (parts + (parts + WARP - 1) / WARP);
    __shared__ double upto[WARP];
    Piece<FOURS> piece;
    read_warp<FOURS, ONCE>(piece, in, first, k);
    const double own = scan_block<WARPS>(sum_warp(piece), upto);
    if (threadIdx.x == 0) send(slots + p, turn.launch, as_bits(own));
    add_up(piece);  // while others' sums are under way
    double before = look_back<WARPS, ROUNDS>(slots, slots + parts, p, own, turn.launch);
    if (warp > 0) before += upto[warp - 1];
    put_warp<FOURS, ONCE>(piece, before, to.out, to.first + warp * OF_WARP, to.k);
}

// Short parts, so that a row of a hundred thousand values is spread over many SMs.
extern "C" __global__ void __launch_bounds__(256, 5) cumsum_parts(View dst, View x, Relay* relay, int parts) {
    scan_part<256, 2, 1, false>(dst, x, relay, parts);
}

// Three blocks on an SM have 120 KB under way, in different phases, and the parts that a
// GPU of 160 SMs works on lie within the 15 groups of 32 that a block sees: whoever looks
// back finds the sum up to the farthest there, and does not wait for a chain of trips.
extern "C" __global__ void __launch_bounds__(256, 3) cumsum_long(View dst, View x, Relay* relay, int parts) {
    scan_part<256, 10, 2, true>(dst, x, relay, parts);
}

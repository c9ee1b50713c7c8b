// CUMSUM: running sums over ne[0], x[k, ..] -> dst[k, ..]. Sums are f64, but for those
// within four neighbours; a result is three of them, each rounded to f32: to the warp's
// first value, from there to the four, and within the four.
//
//   cumsum_warp   one warp a row, k <= 512; grid = ceil(rows / warps a block)
//   cumsum_block  one block a row, k <= 16 * blockDim.x; grid = rows
//   cumsum_parts  ceil(k / (16 * blockDim.x)) blocks a row, in one pass: each takes 16
//                 values a thread, sends their sum, and finds what lies before it
//                 (decoupled look-back, Merrill and Garland 2016);
//                 grid = rows * parts, relay[rows * (parts + ceil(parts / 32))]
//
// In which order parts are added is fixed, whoever is ready first: the parts of a group
// of 32 by the steps of a warp's scan, then groups from the first to the last.
#include "quads.cuh"
#include "relay.cuh"
#include "row_group.cuh"

constexpr int FOURS = 4;                     // of values, a thread
constexpr int WARP_VALUES = WARP * FOURS * 4;

__device__ __forceinline__ double warp_scan(double x) {
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        const double other = __shfl_up_sync(ALL_LANES, x, o);
        if (threadIdx.x % WARP >= o) x += other;
    }
    return x;
}

// A thread's values: four times four neighbours, 128 apart. Each is the sum from the
// warp's first value to here.
struct Piece {
    Four<float> sums[FOURS];
};

// Reads a warp's values from column `first` on and gives their sum.
__device__ __forceinline__ double scan_warp(Piece& piece, const float* in, int first, int k) {
    const bool aligned = fours(in);
    const int lane = threadIdx.x % WARP;
    double upto[FOURS];
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        piece.sums[j] = quad_at(in, first + (j * WARP + lane) * 4, k, aligned, 0.f);
    }
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        float* v = piece.sums[j].v;
        v[1] += v[0];
        v[2] += v[1];
        v[3] += v[2];
        upto[j] = warp_scan(v[3]);
    }
    double sum = 0.;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        // Not `upto - v[3]`, which is NaN where the sum is infinite.
        const double lower = __shfl_up_sync(ALL_LANES, upto[j], 1);
        const float before = (float)(lane > 0 ? sum + lower : sum);
#pragma unroll
        for (int i = 0; i < 4; i++) piece.sums[j].v[i] += before;
        sum += __shfl_sync(ALL_LANES, upto[j], WARP - 1);
    }
    return sum;
}

// Writes them, after `before`.
__device__ __forceinline__ void put_warp(const Piece& piece, double before, float* out, int first, int k) {
    const bool aligned = fours(out);
    const float base = (float)before;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        const int c = first + (j * WARP + threadIdx.x % WARP) * 4;
        Four<float> y;
#pragma unroll
        for (int i = 0; i < 4; i++) y.v[i] = base + piece.sums[j].v[i];
        if (aligned && c + 3 < k) {
            *(Four<float>*)(out + c) = y;
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (c + i < k) out[c + i] = y.v[i];
        }
    }
}

// From the sums of the block's warps: that of the warps before this one, and of all.
__device__ __forceinline__ double scan_block(double of_warp, double& of_block) {
    __shared__ double sums[WARP];
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) sums[warp] = of_warp;
    __syncthreads();
    double before = 0., sum = 0.;
    for (int w = 0; w < blockDim.x / WARP; w++) {
        if (w == warp) before = sum;
        sum += sums[w];
    }
    of_block = sum;
    return before;
}

extern "C" __global__ void cumsum_warp(View dst, View x) {
    start();
    const long long r = WarpRow::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const int k = dim(x, 0);
    Piece piece;
    scan_warp(piece, row_of<const float>(x, at.i1, at.i2, at.i3), 0, k);
    put_warp(piece, 0., row_of<float>(dst, at.i1, at.i2, at.i3), 0, k);
}

extern "C" __global__ void cumsum_block(View dst, View x) {
    start();
    const RowIndex at = row_index(dst, blockIdx.x);
    if (!is_live(dst, at)) return;
    const int first = threadIdx.x / WARP * WARP_VALUES, k = dim(x, 0);
    Piece piece;
    double sum = scan_warp(piece, row_of<const float>(x, at.i1, at.i2, at.i3), first, k);
    const double before = scan_block(sum, sum);
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

// What lies before part `p` of a row, whose own sum `own` is sent already. `parts` are
// the slots of the row's parts, `groups` those of the sums up to the end of each group.
// Warp w looks at the w-th group back; the farthest waits for the sum up to there.
__device__ __forceinline__ double look_back(const Slot* parts, Slot* groups, int p, double own, unsigned launch) {
    __shared__ double sums[WARP], in_group[2];
    __shared__ bool wholes[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int group = p / WARP, mine = p % WARP, back = min((int)blockDim.x / WARP - 1, group);
    if (warp == 0) {
        double x = lane < mine ? as_double(receive(parts + group * WARP + lane, launch)) : 0.;
        x = warp_scan(lane == mine ? own : x);
        if (lane == mine) in_group[1] = x;
        if (lane == mine - 1) in_group[0] = x;
        if (lane == 0 && mine == 0) in_group[0] = 0.;
    } else if (warp <= back) {
        const int g = group - warp;
        bool whole;
        const double sum = group_sum(parts + g * WARP, groups + g, launch, warp == back && g > 0, whole);
        if (lane == 0) {
            sums[warp] = sum;
            wholes[warp] = whole;
        }
    }
    __syncthreads();
    int w = 1;
    while (w <= back && !wholes[w]) w++;
    double before = w <= back ? sums[w] : 0.;
    while (--w > 0) before += sums[w];
    if (threadIdx.x == 0 && mine == WARP - 1) send(groups + group, launch, as_bits(before + in_group[1]));
    return before + in_group[0];
}

// Five blocks of 256 threads on an SM have 80 KB under way, enough for its share of
// memory at the 3 to 4 us that a block takes.
extern "C" __global__ void __launch_bounds__(256, 5) cumsum_parts(View dst, View x, Relay* relay, int parts) {
    const Turn turn = take_turn(relay);
    const int r = turn.block / parts, p = turn.block - r * parts, k = dim(x, 0);
    const RowIndex at = row_index(dst, r);
    const int first = (p * (int)(blockDim.x / WARP) + (int)threadIdx.x / WARP) * WARP_VALUES;
    // Beyond a cut row's end there is nothing, and nobody asks for its sum.
    if (!is_live(dst, at) || p * (int)(blockDim.x / WARP) * WARP_VALUES >= k) return;
    Slot* slots = relay->slots + (long long)r * (parts + (parts + WARP - 1) / WARP);
    Piece piece;
    double sum;
    const double of_warp = scan_warp(piece, row_of<const float>(x, at.i1, at.i2, at.i3), first, k);
    double before = scan_block(of_warp, sum);
    if (threadIdx.x == 0) send(slots + p, turn.launch, as_bits(sum));
    before += look_back(slots, slots + parts, p, sum, turn.launch);
    put_warp(piece, before, row_of<float>(dst, at.i1, at.i2, at.i3), first, k);
}

// SUM_ROWS, MEAN, SUM over f32. Four neighbours are added in f32, all else in f64.
//
//   sum_rows_lanes  x[k, ..] -> dst[1, ..], divided by k when `mean`; `lanes` threads
//                   (2^n, at most a warp) a row; grid as in map.cuh
//   sum_rows_block  the same, one block a row; grid = rows
//   sum_rows_parts  the same, ceil(k / len) blocks a row, len % 4 == 0; the last of them
//                   adds up what the others send through relay[grid] (relay.cuh);
//                   grid = rows * ceil(k / len)
//   sum             all live values of x -> dst[1]; any grid, relay[grid]
//
// Rows of at most 64 values (MOE_ROUTE's weights) are not taken by fours: its sums have
// the same bits.
#include "quads.cuh"
#include "relay.cuh"
#include "row_group.cuh"

__device__ __forceinline__ double sum_quads(const float* row, long long first, long long end, long long step) {
    double sum = 0.;
    each_quad(row, first, end, step, 0.f, [&](const Four<float>& q, long long) {
        sum += (double)((q.v[0] + q.v[1]) + (q.v[2] + q.v[3]));
    });
    return sum;
}

// What the blocks of `slots` before this one sent, added in a fixed order, for all threads.
__device__ __forceinline__ double sum_received(const Slot* slots, int n, unsigned launch) {
    double sum = 0.;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += as_double(receive(slots + i, launch));
    return block_sum(sum);
}

extern "C" __global__ void sum_rows_lanes(View dst, View x, int mean, int lanes) {
    start();
    const Place p = place(lanes);
    const bool inside = p.row < n_rows(dst);
    const RowIndex at = row_index(dst, inside ? p.row : 0);
    const bool alive = inside && is_live(dst, at);
    const int k = dim(x, 0);
    double sum = 0.;
    if (alive) {
        const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
        if (x.ne[0] > 2 * WARP) {
            sum = sum_quads(row, 4 * p.col, k, 4 * lanes);
        } else {
            for (int c = p.col; c < k; c += lanes) sum += row[c];
        }
    }
    for (int o = lanes / 2; o > 0; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    if (alive && p.col == 0) *row_of<float>(dst, at.i1, at.i2, at.i3) = (float)(mean ? sum / k : sum);
}

extern "C" __global__ void sum_rows_block(View dst, View x, int mean) {
    start();
    const RowIndex at = row_index(dst, blockIdx.x);
    if (!is_live(dst, at)) return;
    const int k = dim(x, 0);
    const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
    const double sum = block_sum(sum_quads(row, 4 * threadIdx.x, k, 4 * blockDim.x));
    if (threadIdx.x == 0) *row_of<float>(dst, at.i1, at.i2, at.i3) = (float)(mean ? sum / k : sum);
}

extern "C" __global__ void sum_rows_parts(View dst, View x, int mean, Relay* relay, int len) {
    const Turn turn = take_turn(relay);
    const int parts = (x.ne[0] + len - 1) / len;
    const int r = turn.block / parts, part = turn.block - r * parts, k = dim(x, 0);
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const int first = part * len, end = min(k, first + len);
    const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
    double sum = block_sum(sum_quads(row, first + 4 * threadIdx.x, end, 4 * blockDim.x));
    Slot* slots = relay->slots + (long long)r * parts;
    if (part < parts - 1) {
        if (threadIdx.x == 0) send(slots + part, turn.launch, as_bits(sum));
        return;
    }
    sum += sum_received(slots, part, turn.launch);
    if (threadIdx.x == 0) *row_of<float>(dst, at.i1, at.i2, at.i3) = (float)(mean ? sum / k : sum);
}

// Number of values from the first live one to the last when no others lie between them,
// else -1.
__device__ __forceinline__ long long unbroken(const View& x) {
    long long n = 1;
    bool cut = false;
    for (int d = 0; d < 4; d++) {
        if (x.ne[d] != 1 && (cut || x.nb[d] != n * (long long)sizeof(float))) return -1;
        n *= dim(x, d);
        cut |= d == x.live_dim;
    }
    return n;
}

// This thread's part of the sum; `thread` of `threads`.
__device__ __forceinline__ double sum_of_thread(const View& x, long long thread, long long threads) {
    const long long n = unbroken(x);
    if (n >= 0) return sum_quads((const float*)x.data, 4 * thread, n, 4 * threads);
    // Long rows by all threads together, others by a warp each.
    const long long team = x.ne[0] >= 4096 ? threads : WARP;
    double sum = 0.;
    for (long long r = thread / team; r < n_rows(x); r += threads / team) {
        const RowIndex at = row_index(x, r);
        if (!is_live(x, at)) continue;
        const float* row = row_of<const float>(x, at.i1, at.i2, at.i3);
        sum += sum_quads(row, 4 * (thread % team), dim(x, 0), 4 * team);
    }
    return sum;
}

extern "C" __global__ void sum(View dst, View x, Relay* relay) {
    const Turn turn = take_turn(relay);
    const long long thread = (long long)turn.block * blockDim.x + threadIdx.x;
    double sum = block_sum(sum_of_thread(x, thread, (long long)gridDim.x * blockDim.x));
    if (turn.block < gridDim.x - 1) {
        if (threadIdx.x == 0) send(relay->slots + turn.block, turn.launch, as_bits(sum));
        return;
    }
    sum += sum_received(relay->slots, turn.block, turn.launch);
    if (threadIdx.x == 0) *(float*)dst.data = (float)sum;
}

// ARGMAX: x[k, r] -> dst[r] (i32), ties to the lowest index, NaN last.
//
//   argmax_warp   one warp a row; grid = ceil(r / warps a block)
//   argmax_block  one block a row; grid = r
//   argmax_parts  ceil(k / len) blocks a row, len % 4 == 0; the last of them compares
//                 what the others send through relay[grid] (relay.cuh);
//                 grid = r * ceil(k / len)
//
// Blocks of the latter two are 256 threads.
#include "quads.cuh"
#include "relay.cuh"
#include "row_group.cuh"
#include "top_k.cuh"

constexpr int THREADS = 256;

// The best key of a thread that has nothing above -inf: rare, so not made for speed. It
// starts with a NaN in the thread's first column, the worst that may be there.
__device__ __forceinline__ uint64_t best_of_lowest(const float* row, int first, int end, int step) {
    uint64_t best = ranked(0, first);
#pragma unroll 1
    for (long long four = first; four < end; four += step) {
#pragma unroll 1
        for (int c = (int)four; c < min(four + 4, (long long)end); c++) best = larger(best, rank_key(row[c], c));
    }
    return best;
}

// The best key among the fours of a thread, in columns first, first + step, ... Only the
// best four is ranked: ranking each value takes longer than reading it.
template <int AHEAD>
__device__ __forceinline__ uint64_t best_key(const float* row, int first, int end, int step) {
    if (first >= end) return NO_KEY;
    // Columns rise, so that of fours with equal maxima the first stays. A maximum is NaN
    // only when all four are, and not larger than anything.
    float best = -INFINITY;
    Four<float> four;
    int column = -1;
    each_quad<AHEAD>(row, first, end, step, NAN, [&](const Four<float>& q, long long c) {
        const float most = fmaxf(fmaxf(q.v[0], q.v[1]), fmaxf(q.v[2], q.v[3]));
        if (most > best) {
            best = most;
            four = q;
            column = (int)c;
        }
    });
    if (column < 0) return best_of_lowest(row, first, end, step);
    const int i = four.v[0] == best ? 0 : four.v[1] == best ? 1 : four.v[2] == best ? 2 : 3;
    return rank_key(best, column + i);
}

extern "C" __global__ void argmax_warp(View dst, View x) {
    start();
    const long long r = WarpRow::row();
    if (r >= dim(x, 1)) return;
    const int lane = threadIdx.x % WARP, k = dim(x, 0);
    const uint64_t best = warp_max(best_key<4>(row_of<const float>(x, r), 4 * lane, k, 4 * WARP));
    if (lane == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

// Six fours of a thread under way, as four blocks on an SM have room for: 96 KB.
extern "C" __global__ void __launch_bounds__(THREADS, 4) argmax_block(View dst, View x) {
    start();
    const int r = blockIdx.x, k = dim(x, 0);
    if (r >= dim(x, 1)) return;
    const float* row = row_of<const float>(x, r);
    const uint64_t best = block_max(best_key<6>(row, 4 * threadIdx.x, k, 4 * THREADS));
    if (threadIdx.x == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

extern "C" __global__ void argmax_parts(View dst, View x, Relay* relay, int len) {
    const Turn turn = take_turn(relay);
    const int parts = (x.ne[0] + len - 1) / len;
    const int r = turn.block / parts, part = turn.block - r * parts, k = dim(x, 0);
    if (r >= dim(x, 1)) return;
    const int first = part * len, end = min(k, first + len);
    const float* row = row_of<const float>(x, r);
    uint64_t best = block_max(best_key<4>(row, first + 4 * threadIdx.x, end, 4 * THREADS));
    Slot* slots = relay->slots + (long long)r * parts;
    if (part < parts - 1) {
        if (threadIdx.x == 0) send(slots + part, turn.launch, best);
        return;
    }
    for (int i = threadIdx.x; i < part; i += blockDim.x) best = larger(best, receive(slots + i, turn.launch));
    best = block_max(best);
    if (threadIdx.x == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

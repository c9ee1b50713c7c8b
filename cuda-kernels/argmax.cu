// ARGMAX: x[k, r] -> dst[r] (i32), ties to the lowest index, NaN last.
//
//   argmax_warp   one warp a row; grid = ceil(r / warps a block)
//   argmax_block  one block a row; grid = r
//   argmax_parts  ceil(k / len) blocks a row, len % 4 == 0; the last of them compares
//                 what the others send through relay[grid] (relay.cuh);
//                 grid = r * ceil(k / len)
#include "quads.cuh"
#include "relay.cuh"
#include "row_group.cuh"
#include "top_k.cuh"

// The best key among the fours of a thread, in columns first, first + step, ...
__device__ __forceinline__ uint64_t best_key(const float* row, int first, int end, int step) {
    if (first >= end) return NO_KEY;
    // Columns rise, so that of equal values the first stays. It starts with a NaN in
    // the thread's first column: the worst that may be there.
    uint32_t best = 0;
    int index = first;
    each_quad(row, first, end, step, NAN, [&](const Four<float>& q, long long c) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t value = rank_value(q.v[i]);
            if (value > best) {
                best = value;
                index = (int)c + i;
            }
        }
    });
    return ranked(best, index);
}

extern "C" __global__ void argmax_warp(View dst, View x) {
    start();
    const long long r = WarpRow::row();
    if (r >= dim(x, 1)) return;
    const int lane = threadIdx.x % WARP, k = dim(x, 0);
    const uint64_t best = warp_max(best_key(row_of<const float>(x, r), 4 * lane, k, 4 * WARP));
    if (lane == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

extern "C" __global__ void argmax_block(View dst, View x) {
    start();
    const int r = blockIdx.x, k = dim(x, 0);
    if (r >= dim(x, 1)) return;
    const uint64_t best = block_max(best_key(row_of<const float>(x, r), 4 * threadIdx.x, k, 4 * blockDim.x));
    if (threadIdx.x == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

extern "C" __global__ void argmax_parts(View dst, View x, Relay* relay, int len) {
    const Turn turn = take_turn(relay);
    const int parts = (x.ne[0] + len - 1) / len;
    const int r = turn.block / parts, part = turn.block - r * parts, k = dim(x, 0);
    if (r >= dim(x, 1)) return;
    const int first = part * len, end = min(k, first + len);
    const float* row = row_of<const float>(x, r);
    uint64_t best = block_max(best_key(row, first + 4 * threadIdx.x, end, 4 * blockDim.x));
    Slot* slots = relay->slots + (long long)r * parts;
    if (part < parts - 1) {
        if (threadIdx.x == 0) send(slots + part, turn.launch, best);
        return;
    }
    for (int i = threadIdx.x; i < part; i += blockDim.x) best = larger(best, receive(slots + i, turn.launch));
    best = block_max(best);
    if (threadIdx.x == 0) ((int*)dst.data)[r] = k > 0 ? index_of(best) : 0;
}

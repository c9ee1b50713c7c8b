// Rows of f32 read by fours, whatever their length and where they start. Which values
// come together does not depend on alignment, so neither do the bits of sums.
#pragma once
#include "map.cuh"

// Values c .. c + 3 of a row, `beyond` from `end` on; c % 4 == 0, `aligned` as `fours`
// says of the row.
__device__ __forceinline__ Four<float> quad_at(const float* row, long long c, long long end, bool aligned,
                                               float beyond) {
    if (aligned && c + 3 < end) return *(const Four<float>*)(row + c);
    Four<float> q;
#pragma unroll
    for (int i = 0; i < 4; i++) q.v[i] = c + i < end ? row[c + i] : beyond;
    return q;
}

// Calls f(quad, c) for the fours at c = first, first + step, ... below `end`, in this
// order. AHEAD of them are under way at once, four: 16 KB for a block of 256 threads;
// unrolled further, loops only take registers.
template <int AHEAD = 4, typename F>
__device__ __forceinline__ void each_quad(const float* row, long long first, long long end, long long step,
                                          float beyond, F f) {
    const bool aligned = fours(row);
    long long c = first;
#pragma unroll 1
    for (; aligned && c + (AHEAD - 1) * step + 3 < end; c += AHEAD * step) {
        Four<float> q[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) q[i] = *(const Four<float>*)(row + c + i * step);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) f(q[i], c + i * step);
    }
#pragma unroll 1
    for (; c < end; c += AHEAD * step) {
        Four<float> q[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) q[i] = quad_at(row, c + i * step, end, aligned, beyond);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (c + i * step < end) f(q[i], c + i * step);
        }
    }
}

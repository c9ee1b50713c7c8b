// One head of one token, by one warp: RMS norm times a weight, RoPE, and a result in
// f32 or a place in a cache row; all but the last are optional.
//
// Angles are f64 until they are a fraction of a turn: at position 1,000,000 an f32
// angle is off by 0.03 already.
#pragma once
#include "convert.cuh"

struct HeadRows {
    View dst;      // [head_dim, n_head, n] f32, or with slots [head_dim * n_head, cells]
    View x;        // [head_dim, n_head, n] f32
    View weight;   // [head_dim] f32, or null data: no norm
    View pos;      // [n] i32, or null data: no RoPE
    View factors;  // [n_rot / 2] f32 that divide the angles, or null data
    View slots;    // [n] i32 rows of the cache, or null data: dst is the result
    const double* coefficients;  // [n_rot / 2]: angle at position 1, before factors
    float eps;
    int n_rot;        // values that turn, even, at most head_dim; 0 without RoPE
    int neox;         // pairs (i, i + n_rot / 2) instead of (2 i, 2 i + 1)
    float magnitude;  // on sine and cosine
    int early;        // pos, factors and slots were there before the first kernel
};

// Value i of the head after the norm.
struct Normed {
    const float* x;
    const float* weight;
    float scale;
    __device__ __forceinline__ float operator[](int i) const {
        return weight ? x[i] * scale * weight[i] : x[i];
    }
};

// Sine and cosine of pair i at position `pos`.
__device__ __forceinline__ float2 turn_of(const HeadRows& p, double pos, int i) {
    double angle = p.coefficients[i] * pos;
    if (p.factors.data) angle /= ((const float*)p.factors.data)[i];
    const double turns = angle * 0.15915494309189535;  // 1 / (2 pi)
    float sin, cos;
    sincospif((float)(2. * (turns - rint(turns))), &sin, &cos);
    return make_float2(sin * p.magnitude, cos * p.magnitude);
}

constexpr int PAIRS = 2;  // a lane's pairs under way at once

// The turns of this lane's first pairs.
struct Turns {
    float2 first[PAIRS];

    Turns() = default;

    __device__ __forceinline__ Turns(const HeadRows& p, double pos, int lane) {
        const int half = p.n_rot / 2;
#pragma unroll
        for (int j = 0; j < PAIRS; j++)
            if (half > 0) first[j] = turn_of(p, pos, min(lane + j * WARP, half - 1));
    }
};

// `turns_from(i)` gives the Turns of pairs i, i + 32 ..
template <typename T, class TurnsFrom>
__device__ __forceinline__ void turn_and_store(const HeadRows& p, Normed v, T* y, int lane, TurnsFrom&& turns_from) {
    const int half = p.n_rot / 2;
    for (int i0 = lane; i0 < half; i0 += PAIRS * WARP) {
        float a[PAIRS], b[PAIRS];
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int i = min(i0 + j * WARP, half - 1);
            a[j] = v[p.neox ? i : 2 * i];
            b[j] = v[p.neox ? i + half : 2 * i + 1];
        }
        const Turns turns = turns_from(i0);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int i = i0 + j * WARP;
            if (i >= half) break;
            const float sin = turns.first[j].x, cos = turns.first[j].y;
            // Spelled out, so that every kernel rounds alike.
            put(y + (p.neox ? i : 2 * i), fmaf(a[j], cos, -b[j] * sin));
            put(y + (p.neox ? i + half : 2 * i + 1), fmaf(a[j], sin, b[j] * cos));
        }
    }
    for (int i = p.n_rot + lane; i < p.x.ne[0]; i += WARP) put(y + i, v[i]);
}

// A head of x behind its norm; one warp.
__device__ __forceinline__ Normed normed(const HeadRows& p, int head, int t, int i3, int lane) {
    const int head_dim = p.x.ne[0];
    Normed v = {row_of<const float>(p.x, head, t, i3), (const float*)p.weight.data, 1.f};
    if (v.weight) {
        float sum = 0.f;
        for (int i = lane; i < head_dim; i += WARP) sum += v.x[i] * v.x[i];
        v.scale = 1.f / sqrtf(warp_sum(sum) / head_dim + p.eps);
    }
    return v;
}

// Row `r` of x's rows (head, then token); the whole warp calls it with the same r. Waits for
// what other kernels write, with as much as can be done before.
__device__ __forceinline__ void head_row(const HeadRows& p, long long r) {
    const int lane = threadIdx.x % WARP, head_dim = p.x.ne[0];
    const RowIndex at = row_index(p.x, r);
    const int head = at.i1, t = at.i2;
    if (!p.early) wait_for_inputs();
    // Asked for at once, before any of them is looked at; garbage for dead tokens.
    const int pos = p.pos.data && t < p.pos.ne[0] ? ((const int*)p.pos.data)[t] : 0;
    const int slot = p.slots.data && t < p.slots.ne[0] ? ((const int*)p.slots.data)[t] : -1;
    const bool live = is_live(p.x, at) && (!p.pos.data || t < dim(p.pos, 0));
    const Turns turns(p, pos, lane);
    if (p.early) wait_for_inputs();
    if (!live) return;
    const Normed v = normed(p, head, t, at.i3, lane);
    const auto turns_from = [&](int i) { return i < PAIRS * WARP ? turns : Turns(p, pos, i); };
    if (!p.slots.data) {
        turn_and_store(p, v, row_of<float>(p.dst, head, t, at.i3), lane, turns_from);
        return;
    }
    if (t >= dim(p.slots, 0)) return;
    if (slot < 0 || slot >= dim(p.dst, 1)) return;
    if (p.dst.dtype == 1) {
        turn_and_store(p, v, row_of<half>(p.dst, slot) + head * head_dim, lane, turns_from);
    } else if (p.dst.dtype == 30) {
        turn_and_store(p, v, row_of<__nv_bfloat16>(p.dst, slot) + head * head_dim, lane, turns_from);
    } else {
        turn_and_store(p, v, row_of<float>(p.dst, slot) + head * head_dim, lane, turns_from);
    }
}

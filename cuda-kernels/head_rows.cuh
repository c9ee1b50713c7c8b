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

template <typename T>
__device__ __forceinline__ void turn_and_store(const HeadRows& p, Normed v, T* y, double pos, int lane) {
    constexpr int PAIRS = 2;  // a lane's loads under way at once
    const int half = p.n_rot / 2;
    for (int i0 = lane; i0 < half; i0 += PAIRS * WARP) {
        double angle[PAIRS];
        float a[PAIRS], b[PAIRS];
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int i = min(i0 + j * WARP, half - 1);
            angle[j] = p.coefficients[i];
            a[j] = v[p.neox ? i : 2 * i];
            b[j] = v[p.neox ? i + half : 2 * i + 1];
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int i = i0 + j * WARP;
            if (i >= half) break;
            angle[j] *= pos;
            if (p.factors.data) angle[j] /= ((const float*)p.factors.data)[i];
            const double turns = angle[j] * 0.15915494309189535;  // 1 / (2 pi)
            float sin, cos;
            sincospif((float)(2. * (turns - rint(turns))), &sin, &cos);
            sin *= p.magnitude;
            cos *= p.magnitude;
            put(y + (p.neox ? i : 2 * i), a[j] * cos - b[j] * sin);
            put(y + (p.neox ? i + half : 2 * i + 1), a[j] * sin + b[j] * cos);
        }
    }
    for (int i = p.n_rot + lane; i < p.x.ne[0]; i += WARP) put(y + i, v[i]);
}

// Row `r` of x's rows (head, then token); the whole warp calls it with the same r.
__device__ __forceinline__ void head_row(const HeadRows& p, long long r) {
    const int lane = threadIdx.x % WARP, head_dim = p.x.ne[0];
    const RowIndex at = row_index(p.x, r);
    const int head = at.i1, t = at.i2;
    // Asked for at once, before any of them is looked at; garbage for dead tokens.
    const int pos = p.pos.data && t < p.pos.ne[0] ? ((const int*)p.pos.data)[t] : 0;
    const int slot = p.slots.data && t < p.slots.ne[0] ? ((const int*)p.slots.data)[t] : -1;
    if (!is_live(p.x, at) || (p.pos.data && t >= dim(p.pos, 0))) return;
    Normed v = {row_of<const float>(p.x, head, t, at.i3), (const float*)p.weight.data, 1.f};
    if (v.weight) {
        float sum = 0.f;
        for (int i = lane; i < head_dim; i += WARP) sum += v.x[i] * v.x[i];
        v.scale = 1.f / sqrtf(warp_sum(sum) / head_dim + p.eps);
    }
    if (!p.slots.data) {
        turn_and_store(p, v, row_of<float>(p.dst, head, t, at.i3), pos, lane);
        return;
    }
    if (t >= dim(p.slots, 0)) return;
    if (slot < 0 || slot >= dim(p.dst, 1)) return;
    if (p.dst.dtype == 1) {
        turn_and_store(p, v, row_of<half>(p.dst, slot) + head * head_dim, pos, lane);
    } else if (p.dst.dtype == 30) {
        turn_and_store(p, v, row_of<__nv_bfloat16>(p.dst, slot) + head * head_dim, pos, lane);
    } else {
        turn_and_store(p, v, row_of<float>(p.dst, slot) + head * head_dim, pos, lane);
    }
}

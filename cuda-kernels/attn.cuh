// What the attention kernels share: operands, mask, query rows, scores.
//
// ATTN: dst[:, head, t] = sum over cells of softmax(score) * v, with
//   score = cap * tanh(scale * temperature(pos) * (q . k) / cap)   (no cap: without tanh)
//   dst       f32 [head_dim_v * n_head, n]
//   q         f32 [head_dim_k, n_head, n]
//   k, v      f16 or f32 [head_dim * n_head_kv, cells]; may be anything where no token looks
//   pos, seq  i32 [n]; n is live
//   cell_pos, cell_seq   i32 [cells], contiguous; cells in use are live
// Token t sees the cells of its sequence with 0 <= cell_pos <= pos, less than `window`
// back (window < 0: all). A token that sees none gets zeros; dead rows are not written.
//
// Query rows: the heads that share a KV head are rows of one tile, so that K and V are
// read once for all of them: row = token * group + head % group, group = n_head / n_head_kv.
//
// Split KV: split s of n_split takes cells 128 s .. 128 s + 127 and on in steps of
// 128 n_split, warp w of its block the chunk of 32 at 32 w. What a split found goes to
//   parts     f32x2 [n_split, n_head, n]: running max (log2 units), sum
//   part_out  f32 [head_dim_v, n_split, n_head, n]: sum of weights * v, only where sum != 0
// and attn_combine adds the splits up, in order. Which cells a split takes depends on
// nothing but the cells in use, so the same step gives the same bits.
#pragma once
#include "attn_mma.cuh"

constexpr int ATTN_WARPS = 4;
constexpr int ATTN_THREADS = ATTN_WARPS * WARP;
constexpr int CHUNK_CELLS = 32;
constexpr int SPLIT_CELLS = ATTN_WARPS * CHUNK_CELLS;
// Weights are kept times 2^12, so that as halves they are exact to 2^-11 down to 2^-26
// and the sums stay far from any limit.
constexpr float WEIGHT_SHIFT = 12.f;

struct Attn {
    View dst, q, k, v, pos, seq, cell_pos, cell_seq;
    int n_head_kv;
    float scale, softcap;  // softcap 0: none
    int window;            // -1: none
    float temp_beta;       // 0: no temperature
    int temp_len;          // >= 1
};

// The parameters of every entry, and the struct they make.
#define ATTN_PARAMS                                                                                      \
    View dst, View q, View k, View v, View pos, View seq, View cell_pos, View cell_seq, int n_head_kv,   \
        float scale, float softcap, int window, float temp_beta, int temp_len
#define ATTN_STRUCT                                                                                      \
    { dst, q, k, v, pos, seq, cell_pos, cell_seq, n_head_kv, scale, softcap, window, temp_beta, temp_len }

__device__ __forceinline__ int live_tokens(const Attn& a) { return min(dim(a.q, 2), dim(a.pos, 0)); }
__device__ __forceinline__ int live_cells(const Attn& a) { return dim(a.cell_pos, 0); }
__device__ __forceinline__ int group_of(const Attn& a) { return a.q.ne[1] / a.n_head_kv; }
__device__ __forceinline__ const int* ints(const View& v) { return (const int*)v.data; }

__device__ __forceinline__ bool sees(int pos, int seq, int cell_pos, int cell_seq, int window) {
    return cell_pos >= 0 && cell_pos <= pos && cell_seq == seq && (window < 0 || pos - cell_pos < window);
}

// What q . k is multiplied with before `finish_score`, for a token at `pos`.
__device__ __forceinline__ float score_factor(const Attn& a, int pos) {
    float scale = a.scale;
    if (a.temp_beta != 0.f) scale *= 1.f + a.temp_beta * log1pf((float)(max(pos, 0) / a.temp_len));
    return a.softcap == 0.f ? scale * LOG2_E : scale / a.softcap;
}

// The rest of the way to a score in log2 units.
__device__ __forceinline__ float finish_score(const Attn& a, float x) {
    return a.softcap == 0.f ? x : a.softcap * LOG2_E * tanhf(x);
}

// A max that may be -inf as something to subtract; -inf stays a weight of 0 and NaN is
// passed on.
__device__ __forceinline__ float finite_max(float m) { return m == -INFINITY ? 0.f : m; }

// Query values as two halves. An f16 q would move scores by 2^-12 of |q| |k|, and weights
// by as much times the spread of scores: more than NMSE 1e-7 for peaked rows. hi + lo
// carries 22 bits; K is f16 already, so products are exact and only f32 sums round. A
// power of two brings a row's largest value below 2^15: no overflow, and lo stays normal.
//
// The exponent of that power of two for a row whose largest magnitude is `top`.
__device__ __forceinline__ int query_shift(float top) {
    const int top_exponent = (__float_as_int(top) >> 23) - 127;
    return max(-100, min(100, 14 - top_exponent));
}

// Fragments of 16 rows: [head_dim / 16 steps, hi and lo, lane] as the `a` of mma. The k
// order is the matrices' own, or WIDE: lane c owns 8 neighbouring values of each 32 (two
// steps), so that it can read K's 16 bytes from global memory; 4 of a last 16.
template <int HD, bool WIDE>
__device__ __forceinline__ int fragment_word(int d, int row) {
    int step = d / 16, half_k = d % 16 / 8, c = d % 8 / 2;
    if (WIDE && d < HD / 32 * 32) {
        step = d / 32 * 2 + d % 8 / 4, half_k = d % 4 / 2, c = d % 32 / 8;
    } else if (WIDE) {
        half_k = d % 4 / 2, c = d % 16 / 4;
    }
    return (step * 2 * WARP + row % 8 * 4 + c) * 4 + half_k * 2 + row / 8;
}

// Writes one row (of 16) of the fragments; a null `q` is a row of zeros. One warp. Gives
// the factor that undoes the power of two.
template <int HD, bool WIDE>
__device__ __forceinline__ float stage_row(const float* q, uint32_t* fragments, int row, int lane) {
    constexpr int N_PAIRS = HD / 2, N = (N_PAIRS + WARP - 1) / WARP;
    float2 x[N];
    float top = 0.f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int pair = lane + WARP * i;
        const bool present = q != nullptr && pair < N_PAIRS;
        x[i] = present ? make_float2(q[2 * pair], q[2 * pair + 1]) : make_float2(0.f, 0.f);
        top = fmaxf(top, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    }
    const int up = query_shift(warp_max(top));
    const float scale = __int_as_float((127 + up) << 23);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int pair = lane + WARP * i;
        if (pair >= N_PAIRS) continue;
        const float2 y = make_float2(x[i].x * scale, x[i].y * scale);
        const uint32_t hi = pack_half2(y.x, y.y);
        const float2 h = unpack_half2(hi);
        uint32_t* word = fragments + fragment_word<HD, WIDE>(2 * pair, row);
        word[0] = hi;
        word[4 * WARP] = pack_half2(y.x - h.x, y.y - h.y);
    }
    return __int_as_float((127 - up) << 23);
}

// Running softmax of rows g and g + 8; `sum` is this lane's share.
struct Running {
    float max[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.f, 0.f};
};

// Takes in the scores of 8 N cells (log2 units, -inf where masked): they become weights
// times 2^12. Gives the factors that earlier sums must be multiplied with.
template <int N>
__device__ __forceinline__ float2 weigh(Running& run, float (&s)[N][4]) {
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = run.max[h];
#pragma unroll
        for (int j = 0; j < N; j++) top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
        const float base = finite_max(top), shifted = base - WEIGHT_SHIFT;
        keep[h] = exp2_fast(run.max[h] - base);
        run.max[h] = top;
        run.sum[h] *= keep[h];
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) s[j][i] = exp2_fast(s[j][i] - shifted);
        }
    }
    return make_float2(keep[0], keep[1]);
}

// The sum of the four lanes that share a row.
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

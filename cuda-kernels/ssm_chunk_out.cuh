// Results of a chunk of SSM_SCAN, for ssm_chunk_scan.cu and ssm_chunk_short.cu: a warp
// computes 16 tokens of y for all columns, with M in registers as in attention.
#pragma once
#include "ssm_chunk_work.cuh"

// What follows the scan, for this block's columns.
struct Finish {
    char* y;  // first column in token 0
    long long y_stride;
    float d;  // 0: x does not skip the state
    const char* z;  // null: no gate
    long long z_stride;
    bool pairs;  // z is there, and aligned to 8 bytes

    template <class T>
    __device__ __forceinline__ Finish(const Work<T>& work, const View& dst, const View& skips, const View& gate)
        : y((char*)(row_of<float>(dst, work.head) + work.column)),
          y_stride(dst.nb[2]),
          d(skips.data ? ((const float*)skips.data)[work.head] : 0.f),
          z(gate.data ? (const char*)(row_of<const float>(gate, work.head) + work.column) : nullptr),
          z_stride(gate.nb[2]),
          pairs(z && (((long long)z | z_stride) & 7) == 0) {}
};

// SiLU to a few ulp; where e^-z overflows, 0.
__device__ __forceinline__ float gate_of(float z) { return z * reciprocal_fast(1.f + exp2_fast(-LOG2_E * z)); }

// z of this lane's two tokens in WIDE columns, or zeros.
template <bool PAIRS, int WIDE>
__device__ __forceinline__ void load_gates(float2 (&z)[WIDE / 8][2], const Finish& fin, int first, const int (&t)[2],
                                           int n, int column, int columns) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float* row = (const float*)(fin.z + (first + t[e]) * fin.z_stride) + column + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < WIDE / 8; i++) {
            const bool there = t[e] < n && column + i / 2 * 16 < columns;
            z[i][e] = make_float2(0.f, 0.f);
            if (there && PAIRS) z[i][e] = *(const float2*)(row + 8 * i);
            if (there && !PAIRS) z[i][e] = make_float2(row[8 * i], row[8 * i + 1]);
        }
    }
}

// Log decays of this lane's two tokens of the 16 from `row` on.
template <class S>
__device__ __forceinline__ float2 row_decays(const S& sh, int row) {
    const float* at = sh.log_decay + row + threadIdx.x % WARP / 4;
    return make_float2(at[0], at[8]);
}

// C . B of 16 tokens s from `at` on becomes M; where MASKED, those after t become 0.
template <bool MASKED, class S>
__device__ __forceinline__ void decay(float (&s0)[4], float (&s1)[4], float2& most, const S& sh, int at, int row,
                                      float2 log_decay) {
    const int lane = threadIdx.x % WARP;
    at += lane % 4 * 2;
    const int past = row + lane / 4 - at;  // t - s of the first value
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float(&s)[4] = i == 0 ? s0 : s1;
        const float2 log = *(const float2*)(sh.log_decay + at + 8 * i), f = *(const float2*)(sh.weight + at + 8 * i);
        s[0] *= f.x * exp2_fast(log_decay.x - log.x), s[1] *= f.y * exp2_fast(log_decay.x - log.y);
        s[2] *= f.x * exp2_fast(log_decay.y - log.x), s[3] *= f.y * exp2_fast(log_decay.y - log.y);
        if (MASKED) {
            // The decay may be infinite there: not a factor of 0.
            s[0] = past >= 8 * i ? s[0] : 0.f, s[1] = past >= 8 * i + 1 ? s[1] : 0.f;
            s[2] = past + 8 >= 8 * i ? s[2] : 0.f, s[3] = past + 8 >= 8 * i + 1 ? s[3] : 0.f;
        }
        most.x = fmaxf(most.x, fmaxf(fabsf(s[0]), fabsf(s[1])));
        most.y = fmaxf(most.y, fmaxf(fabsf(s[2]), fabsf(s[3])));
    }
}

// C . B of a lane's two of 16 tokens t with all tokens s of a chunk.
using Scores = float[CHUNK / 8][4];

// Tiles of 16 tokens s are taken in pairs; true where pair `at / 2` has some before the
// end of the tokens t from `row` on.
__device__ __forceinline__ bool pair_counts(int at, int row) { return 32 * (at / 2) <= row; }

// C of 16 tokens from `row` on as a left operand.
template <class T>
__device__ __forceinline__ void load_c(uint4 (&c)[T::N / 16], const half* from, int row) {
    const int lane = threadIdx.x % WARP, low = lane / 8 % 2, high = lane / 16;
#pragma unroll
    for (int k = 0; k < T::N / 16; k++) {
        // Matrices: rows 0 .. 7 and 8 .. 15 at k, then at k + 8.
        uint32_t r[4];
        load_matrices(r, from + swizzled<T::N>(row + 8 * low + lane % 8, 2 * k + high));
        c[k] = make_uint4(r[0], r[1], r[2], r[3]);
    }
}

// C . B of the 16 tokens from `row` on, in pairs that count.
template <class T>
__device__ __forceinline__ void multiply_cb(Scores& s, const uint4 (&c)[T::N / 16], const half* b, int row) {
    const int lane = threadIdx.x % WARP;
    // Two tiles at a time: four independent sums keep the tensor cores busy.
#pragma unroll
    for (int pair = 0; pair < CHUNK / 32; pair++) {
        if (!pair_counts(2 * pair, row)) continue;
        // Matrices: tokens 0 .. 7 at k and k + 8, then tokens 8 .. 15.
        const int token = 32 * pair + lane / 16 * 8 + lane % 8;
#pragma unroll
        for (int k = 0; k < T::N / 16; k++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t r[4];
                load_matrices(r, b + swizzled<T::N>(token + 16 * i, 2 * k + lane / 8 % 2));
                mma(s[4 * pair + 2 * i], c[k], r[0], r[1]);
                mma(s[4 * pair + 2 * i + 1], c[k], r[2], r[3]);
            }
        }
    }
}

// M[t, s] of 16 tokens t from `row` on as the left operand of its product with x, 16
// tokens s at a time; the power of two that undoes the lift of rows g and g + 8.
template <class S>
__device__ __forceinline__ float2 mix(uint4 (&m)[CHUNK / 16], Scores& s, const S& sh, int row) {
    const float2 log_decay = row_decays(sh, row);
    float2 most = make_float2(0.f, 0.f);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        if (16 * j < row) {
            decay<false>(s[2 * j], s[2 * j + 1], most, sh, 16 * j, row, log_decay);
        } else if (pair_counts(j, row)) {
            decay<true>(s[2 * j], s[2 * j + 1], most, sh, 16 * j, row, log_decay);
        }
    }
    const Lift low = lift(quad_max(most.x), TOP_M), high = lift(quad_max(most.y), TOP_M);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        m[j].x = pack_half2(s[2 * j][0] * low.factor, s[2 * j][1] * low.factor);
        m[j].y = pack_half2(s[2 * j][2] * high.factor, s[2 * j][3] * high.factor);
        m[j].z = pack_half2(s[2 * j + 1][0] * low.factor, s[2 * j + 1][1] * low.factor);
        m[j].w = pack_half2(s[2 * j + 1][2] * high.factor, s[2 * j + 1][3] * high.factor);
    }
    return make_float2(low.undo, high.undo);
}

// What undoes the lift of h in shared memory: of all, or of each row p.
struct OneUndo {
    float undo;
    __device__ __forceinline__ float2 of(int) const { return make_float2(undo, undo); }
};

struct RowUndo {
    const float* rows;
    __device__ __forceinline__ float2 of(int p) const { return *(const float2*)(rows + p); }
};

template <int N>
struct Columns {
    static constexpr int value = N;
};

// Results of 16 tokens, from `row` on in the chunk that begins with token `first` and has
// `n`, which began with h; m and m_undo as `mix` gives them.
template <class T, class S, class U>
__device__ __forceinline__ void results(const uint4 (&m)[CHUNK / 16], float2 m_undo, const uint4 (&c)[T::N / 16],
                                        const S& sh, const U& h_undo, int row, int first, int n, int columns,
                                        const Finish& fin) {
    const int lane = threadIdx.x % WARP, low = lane / 8 % 2, high = lane / 16;
    const int t[2] = {row + lane / 4, row + lane / 4 + 8};
    const float2 log_decay = row_decays(sh, row);
    const float inside[2] = {m_undo.x * sh.c_undo[t[0]], m_undo.y * sh.c_undo[t[1]]};
    const float before[2] = {exp2_fast(log_decay.x) * sh.c_undo[t[0]], exp2_fast(log_decay.y) * sh.c_undo[t[1]]};

    auto part = [&](auto wide, int column) {
        constexpr int WIDE = decltype(wide)::value;
        float2 z[WIDE / 8][2];
        if (fin.pairs) {
            load_gates<true, WIDE>(z, fin, first, t, n, column, columns);
        } else if (fin.z) {
            load_gates<false, WIDE>(z, fin, first, t, n, column, columns);
        } else {
#pragma unroll
            for (int i = 0; i < WIDE / 8; i++) z[i][0] = z[i][1] = make_float2(1.f, 1.f);
        }
        float in[WIDE / 8][4] = {}, from_h[WIDE / 8][4] = {};
        // Matrices: tokens 0 .. 7, then 8 .. 15, of 8 columns; then of the next 8.
        const half* x = sh.x + (8 * low + lane % 8) * T::X_PITCH + column + 8 * high;
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
            if (!pair_counts(j, row)) continue;
#pragma unroll
            for (int i = 0; i < WIDE / 16; i++) {
                uint32_t r[4];
                load_matrices_transposed(r, x + 16 * j * T::X_PITCH + 16 * i);
                mma(in[2 * i], m[j], r[0], r[1]);
                mma(in[2 * i + 1], m[j], r[2], r[3]);
            }
        }
        const half* h = sh.h + (column + 8 * high + lane % 8) * T::H_PITCH + 8 * low;
#pragma unroll
        for (int k = 0; k < T::N / 16; k++) {
#pragma unroll
            for (int i = 0; i < WIDE / 16; i++) {
                uint32_t r[4];
                load_matrices(r, h + 16 * i * T::H_PITCH + 16 * k);
                mma(from_h[2 * i], c[k], r[0], r[1]);
                mma(from_h[2 * i + 1], c[k], r[2], r[3]);
            }
        }
        if (fin.z) {
#pragma unroll
            for (int i = 0; i < WIDE / 8; i++) {
#pragma unroll
                for (int e = 0; e < 2; e++) z[i][e] = make_float2(gate_of(z[i][e].x), gate_of(z[i][e].y));
            }
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float skip = fin.d * sh.x_undo[t[e]];
            float2* y_row = (float2*)(fin.y + (first + t[e]) * fin.y_stride) + lane % 4;
            const half2* x_row = (const half2*)(sh.x + t[e] * T::X_PITCH) + lane % 4;
#pragma unroll
            for (int i = 0; i < WIDE / 8; i++) {
                const int at = column / 2 + 4 * i;
                const float2 undo = h_undo.of(column + 8 * i + lane % 4 * 2), v = __half22float2(x_row[at]);
                float2 y;
                y.x = fmaf(in[i][2 * e], inside[e], from_h[i][2 * e] * undo.x * before[e]);
                y.y = fmaf(in[i][2 * e + 1], inside[e], from_h[i][2 * e + 1] * undo.y * before[e]);
                y.x = fmaf(v.x, skip, y.x) * z[i][e].x, y.y = fmaf(v.y, skip, y.y) * z[i][e].y;
                if (t[e] < n && column + i / 2 * 16 < columns) y_row[at] = y;
            }
        }
    };
    // Columns at a time, by registers: who goes through several chunks has the state in some.
    constexpr int MOST = T::N <= 128 && (T::STAGES == 1 || T::P <= 64) ? 32 : 16, REST = T::P % MOST;
#pragma unroll
    for (int column = 0; column < T::P - REST; column += MOST) {
        if (column >= columns) break;
        part(Columns<MOST>(), column);
    }
    if constexpr (REST > 0) {
        if (T::P - REST < columns) part(Columns<REST>(), T::P - REST);
    }
}

// Asks for the z of the `n` tokens from `first` on.
template <class T>
__device__ __forceinline__ void expect_z(const Finish& fin, int first, int n, int columns) {
    static_assert(CHUNK_THREADS == 2 * CHUNK, "two threads a token");
    const int row = threadIdx.x / 2, half = threadIdx.x % 2 * 128;
    if (!fin.z || row >= n) return;
    const char* z = fin.z + (first + row) * fin.z_stride + half;
#pragma unroll
    for (int at = 0; at < T::P * 4; at += 256)
        if (at + half < columns * 4) prefetch(z + at);
}

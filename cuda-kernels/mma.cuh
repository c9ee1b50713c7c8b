// Tensor-core pieces shared by matrix products.
#pragma once
#include "quant/unit.cuh"

// Activations are stored as f16(x / 16): values up to 2^20 keep their place, at an
// absolute loss of at most 2^-21, far below what one rounding to f16 costs values near 1.
// Products are multiplied by 16 at the end.
constexpr float ACT_SCALE = 1.f / 16.f, ACT_UNSCALE = 16.f;

__device__ __forceinline__ half to_act(float x) {
    return __float2half_rn(fminf(fmaxf(x * ACT_SCALE, -65504.f), 65504.f));
}

__device__ __forceinline__ uint32_t to_act2(float x, float y) {
    return as_u32(__halves2half2(to_act(x), to_act(y)));
}

// c[16 rows, 8 columns] += a[16, 16] * b[16, 8], f32 accumulator (PTX ISA, m16n8k16).
__device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The weights of unit U of a step as the `a` operands of its two k-steps.
template <class T, int U>
__device__ __forceinline__ void weights(const typename T::Step& st, uint32_t a[2][4]) {
    half2 lo[4], hi[4];
    T::template codes<U, 0>(st, lo);
    T::template codes<U, 1>(st, hi);
    const half2 s0 = scale_half_of<T, U, 0>(st), s1 = scale_half_of<T, U, 1>(st);
    const half2 d0 = __low2half2(s0), m0 = __high2half2(s0);
    const half2 d1 = __low2half2(s1), m1 = __high2half2(s1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        a[k][0] = as_u32(__hfma2(lo[2 * k], d0, m0));
        a[k][1] = as_u32(__hfma2(hi[2 * k], d1, m1));
        a[k][2] = as_u32(__hfma2(lo[2 * k + 1], d0, m0));
        a[k][3] = as_u32(__hfma2(hi[2 * k + 1], d1, m1));
    }
}

// The weights of one row of a unit in f32, exactly as dequantized.
template <class T, int U, int H>
__device__ __forceinline__ void weights_f32(const typename T::Step& st, float w[8]) {
    if constexpr (T::WIDE) {
        T::template values<U, H>(st, w);
    } else {
        half2 q[4];
        T::template codes<U, H>(st, q);
        const float2 s = T::template scale<U, H>(st);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = __half22float2(q[i]);
            w[2 * i] = v.x * s.x + s.y;
            w[2 * i + 1] = v.y * s.x + s.y;
        }
    }
}

// A compile-time number that can be handed to a lambda.
template <int N>
struct Const {
    static constexpr int value = N;
};

// Runs `body(Const<0>) .. body(Const<N - 1>)`.
template <int N, int U = 0, class Body>
__device__ __forceinline__ void each(Body&& body) {
    if constexpr (U < N) {
        body(Const<U>{});
        each<N, U + 1>(body);
    }
}

// Bytes of a row tile of `n_units` units.
template <class T>
__device__ __forceinline__ size_t row_tile_bytes(int n_units) {
    return (size_t)n_units * (TILE_ROWS * UNIT) / T::LEN * T::BYTES;
}

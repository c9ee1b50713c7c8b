// Functions of one value, by the formulas of src/backend/cpu/simd_math.rs.
#pragma once
#include "common.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// 2^x to 2 ulp; results below 2^-126 become 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// e^x, capped where f32 would overflow: x * sigmoid(x) stays -inf at -inf.
__device__ __forceinline__ float exp_capped(float x) {
    return expf(x > 88.7f ? 88.7f : x);  // NaN stays NaN
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + exp_capped(-x)); }

__device__ __forceinline__ float tanh_by_exp(float x) { return 1.f - 2.f / (exp_capped(2.f * x) + 1.f); }

// Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
__device__ __forceinline__ float erf_by_exp(float x) {
    const float t = 1.f / (1.f + 0.3275911f * fabsf(x));
    float p = 1.0614054f;
    p = fmaf(p, t, -1.453152f);
    p = fmaf(p, t, 1.4214138f);
    p = fmaf(p, t, -0.28449672f);
    p = fmaf(p, t, 0.2548296f);
    return copysignf(1.f - p * t * exp_capped(-x * x), x);
}

struct Silu {
    __device__ __forceinline__ float operator()(float x) const { return x * sigmoid(x); }
};

// Tanh form (arXiv 1606.08415); sqrt(2 / pi).
struct Gelu {
    __device__ __forceinline__ float operator()(float x) const {
        return 0.5f * x * (1.f + tanh_by_exp(0.7978846f * x * (1.f + 0.044715f * x * x)));
    }
};

struct GeluQuick {
    __device__ __forceinline__ float operator()(float x) const { return x * sigmoid(1.702f * x); }
};

struct GeluErf {
    __device__ __forceinline__ float operator()(float x) const {
        return 0.5f * x * (1.f + erf_by_exp(x * 0.70710678f));
    }
};

// NaN gives 0, as on the CPU.
struct Relu {
    __device__ __forceinline__ float operator()(float x) const { return fmaxf(x, 0.f); }
};

struct ReluSqr {
    __device__ __forceinline__ float operator()(float x) const {
        const float y = fmaxf(x, 0.f);
        return y * y;
    }
};

// ln(1 + e^x); above 20 x itself, as ggml has it.
struct Softplus {
    __device__ __forceinline__ float operator()(float x) const { return x > 20.f ? x : log1pf(expf(x)); }
};

struct Exp {
    __device__ __forceinline__ float operator()(float x) const { return expf(x); }
};

struct Sigmoid {
    __device__ __forceinline__ float operator()(float x) const { return sigmoid(x); }
};

struct Tanh {
    __device__ __forceinline__ float operator()(float x) const { return tanh_by_exp(x); }
};

// Gated units, in the order of GluKind.
enum Glu { SWIGLU, GEGLU, GEGLU_ERF, GEGLU_QUICK, REGLU };

__device__ __forceinline__ float gated(int kind, float gate, float up) {
    switch (kind) {
        case SWIGLU: return Silu()(gate) * up;
        case GEGLU: return Gelu()(gate) * up;
        case GEGLU_ERF: return GeluErf()(gate) * up;
        case GEGLU_QUICK: return GeluQuick()(gate) * up;
        default: return Relu()(gate) * up;
    }
}

// a / b of small numbers, without the steps of a division.
__device__ __forceinline__ int ratio(int a, int b) { return (int)__fdividef(a + 0.5f, b); }

// Value-wise functions; formulas as in src/backend/cpu/elementwise.rs.
#pragma once
#include "common.cuh"

// Gated units, in the order of GluKind.
enum Glu { SWIGLU, GEGLU, GEGLU_ERF, GEGLU_QUICK, REGLU };

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }

__device__ __forceinline__ float gelu(float x) {
    const float c = 0.7978845608028654f;  // sqrt(2 / pi)
    return 0.5f * x * (1.f + tanhf(c * x * (1.f + 0.044715f * x * x)));
}

__device__ __forceinline__ float gelu_erf(float x) {
    return 0.5f * x * (1.f + erff(x * 0.7071067811865476f));
}

__device__ __forceinline__ float gelu_quick(float x) { return x / (1.f + expf(-1.702f * x)); }

__device__ __forceinline__ float gated(int kind, float gate, float up) {
    switch (kind) {
        case SWIGLU: return silu(gate) * up;
        case GEGLU: return gelu(gate) * up;
        case GEGLU_ERF: return gelu_erf(gate) * up;
        case GEGLU_QUICK: return gelu_quick(gate) * up;
        default: return fmaxf(gate, 0.f) * up;
    }
}

// Float types of plain (unquantized) values: to f32 and back, one or four at a time.
#pragma once
#include "common.cuh"

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

// To the nearest, ties to even; what is too large becomes infinite.
__device__ __forceinline__ void put(float* y, float x) { *y = x; }
__device__ __forceinline__ void put(half* y, float x) { *y = __float2half_rn(x); }
__device__ __forceinline__ void put(__nv_bfloat16* y, float x) { *y = __float2bfloat16_rn(x); }

// Four values of type T as they lie in memory, loaded and stored in one go.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T v[4];
};

template <typename T>
__device__ __forceinline__ bool fours(const T* p) {
    return (uintptr_t)p % sizeof(Four<T>) == 0;
}

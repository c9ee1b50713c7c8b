// Pieces of both forms of SSM_SCAN: rows of the state over the lanes of a warp.
#pragma once
#include "ssm.cuh"

// A row of `d_state` values over LANES neighbouring lanes, N values a lane. VEC 4 or 2: a
// lane has so many neighbours at a time, and d_state == LANES * N; VEC 1: each LANES-th
// value, and d_state <= LANES * N.
template <int LANES_, int N_, int VEC>
struct StateRow {
    static constexpr int LANES = LANES_, N = N_;
    static constexpr bool EXACT = VEC > 1;
    static constexpr int PER_WARP = WARP / LANES;
    // Whether registers suffice for operands of several tokens at once.
    static constexpr bool SMALL = N <= 16;

    // Constants, where they can be.
    static __device__ __forceinline__ int d_state(const View& state) { return EXACT ? LANES * N : state.ne[0]; }
    static __device__ __forceinline__ int pitch(int d_state) { return (d_state + 3) / 4 * 4; }

    // Index in the row of value `i` of a lane.
    static __device__ __forceinline__ int index(int lane, int i) {
        return VEC * (lane + i / VEC * LANES) + i % VEC;
    }

    // False for values that no lane has.
    static __device__ __forceinline__ bool used(int i, int d_state) { return EXACT || i * LANES < d_state; }

    // Values beyond the row are 0.
    static __device__ __forceinline__ void load(float (&v)[N], const float* row, int lane, int d_state) {
        if constexpr (VEC == 4) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const float4 four = *(const float4*)(row + index(lane, i));
                v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
            }
        } else if constexpr (VEC == 2) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                const float2 two = *(const float2*)(row + index(lane, i));
                v[i] = two.x, v[i + 1] = two.y;
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = index(lane, i) < d_state ? row[index(lane, i)] : 0.f;
        }
    }

    static __device__ __forceinline__ void store(float* row, const float (&v)[N], int lane, int d_state) {
        if constexpr (VEC == 4) {
#pragma unroll
            for (int i = 0; i < N; i += 4)
                *(float4*)(row + index(lane, i)) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        } else if constexpr (VEC == 2) {
#pragma unroll
            for (int i = 0; i < N; i += 2) *(float2*)(row + index(lane, i)) = make_float2(v[i], v[i + 1]);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (index(lane, i) < d_state) row[index(lane, i)] = v[i];
            }
        }
    }
};

// Start copying `n` rows, `stride_bytes` apart, into shared memory. A step of one token
// runs through cold code: nothing is unrolled or divided. All threads of a block call them.
//
// Rows of WIDTH values (a power of two) on 16 bytes, without gaps in shared memory.
template <int WIDTH>
__device__ __forceinline__ void stage_fours(float* to, const char* from, long long stride_bytes, int n) {
    constexpr int UNITS = WIDTH / 4;
    to += 4 * threadIdx.x;
    if constexpr (UNITS <= WARP) {  // so a thread stays with its columns
        int row = threadIdx.x / UNITS;
        const int step = blockDim.x / UNITS;
        from += row * stride_bytes + 16 * (threadIdx.x % UNITS);
#pragma unroll 1
        for (; row < n; row += step, from += step * stride_bytes, to += 4 * blockDim.x)
            stage_16(to, (const float*)from);
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < n * UNITS; i += blockDim.x, to += 4 * blockDim.x)
            stage_16(to, (const float*)(from + i / UNITS * stride_bytes) + 4 * (i % UNITS));
    }
}

// Rows of any width, to rows of `pitch` values.
__device__ __forceinline__ void stage_singles(float* to, int pitch, const char* from, long long stride_bytes, int n,
                                              int width) {
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int row = threadIdx.x / WARP; row < n; row += blockDim.x / WARP) {
        const float* values = (const float*)(from + row * stride_bytes);
#pragma unroll 1
        for (int at = lane; at < width; at += WARP) stage_4(to + row * pitch + at, values + at);
    }
}

// Rows of b or c for a state laid out as `Row`.
template <typename Row>
__device__ __forceinline__ void stage_states(float* to, const char* from, long long stride_bytes, int n,
                                             int d_state) {
    if constexpr (Row::EXACT) {
        if (in_fours(from, stride_bytes)) {
            stage_fours<Row::LANES * Row::N>(to, from, stride_bytes, n);
            return;
        }
    }
    stage_singles(to, Row::pitch(d_state), from, stride_bytes, n, d_state);
}

// Tokens whose sums over the lanes of a row are taken together.
constexpr int GROUP = 4;

// Sums `v[token]` over LANES neighbouring lanes; lane `l` of them gets the sum of token
// `l / (LANES / GROUP)`. The order does not depend on which tokens are there.
template <int LANES>
__device__ __forceinline__ float sums_of_tokens(float (&v)[GROUP], int lane) {
    int n = GROUP;
#pragma unroll
    for (int o = LANES / 2; o > 0; o /= 2) {
        if (n > 1) {
            n /= 2;
            const bool upper = lane & o;
#pragma unroll
            for (int i = 0; i < GROUP / 2; i++) {
                if (i < n) {
                    const float kept = upper ? v[i + n] : v[i], given = upper ? v[i] : v[i + n];
                    v[i] = kept + __shfl_xor_sync(ALL_LANES, given, o);
                }
            }
        } else {
            v[0] += __shfl_xor_sync(ALL_LANES, v[0], o);
        }
    }
    return v[0];
}

// Softplus in a third of its instructions: `max(v, 0) + ln(1 + u)`, u = e^-|v|, with a
// polynomial for `ln(1 + u) / u` (Chebyshev nodes on [0, 1], relative error 1.6e-7).
__device__ __forceinline__ float softplus_short(float v) {
    const float u = exp2_fast(-LOG2_E * fabsf(v));
    float p = 0.0052534579f;
    p = fmaf(p, u, -0.0295885075f);
    p = fmaf(p, u, 0.0783616677f);
    p = fmaf(p, u, -0.136747703f);
    p = fmaf(p, u, 0.191114306f);
    p = fmaf(p, u, -0.248443693f);
    p = fmaf(p, u, 0.333192706f);
    p = fmaf(p, u, -0.499995023f);
    p = fmaf(p, u, 1.f);
    return v > 20.f ? v : fmaf(u, p, fmaxf(v, 0.f));
}

// Dynamic shared memory, on a 16-byte border.
__device__ __forceinline__ float* scan_shared() {
    extern __shared__ float4 scan_shared_memory[];
    return (float*)scan_shared_memory;
}

// What follows the scan: `d` and `z` where they are there.
__device__ __forceinline__ float finished(float y, bool skip, float d, float x, bool gate, float z) {
    if (skip) y = fmaf(d, x, y);
    if (gate) y *= SiluShort()(z);
    return y;
}

// Operands of SSM_SCAN; `dt_bias`, `d` and `z` with null data when absent.
struct Scan {
    View y, state, x, dt, a, b, c, ids, rows, dt_bias, d, z;

    // Value `h` of a vector, or 0.
    static __device__ __forceinline__ float value(const View& v, int h) {
        return v.data ? ((const float*)v.data)[h] : 0.f;
    }
};

// F32: plain values, w = code; codes are rounded to half, `values` are exact.
//
// GGUF: 4 bytes a value.
// Group on the device (2048 bytes, 32 values of k): for rows r and r + 8, and in each for
// the first and the last four of a lane's values, 32 lanes x 16 bytes.
#pragma once
#include "unit.cuh"

struct F32 {
    static constexpr int ID = 0, LEN = 1, BYTES = 4, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * UNIT * BYTES;
    static constexpr bool WIDE = true, HAS_SCALE_HALF = true;
    static_assert(GROUP == 4 * 32 * 16, "two rows, two halves of eight values");
    struct Step {
        float4 v[UNITS][4];
    };

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int n_values, uint8_t* dst, int lane) {
        rearrange_plain<BYTES>(src, row_bytes, n_rows, n_values, dst, lane);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int n_units, int lane) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint8_t* unit = tile + (size_t)(s * UNITS + u) * GROUP;
            const bool there = s * UNITS + u < n_units;
#pragma unroll
            for (int i = 0; i < 4; i++) st.v[u][i] = stream_if<float4>(there, unit, 32 * i + lane);
        }
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        const float4 a = st.v[U][2 * H], b = st.v[U][2 * H + 1];
        q[0] = saturated_half2(a.x, a.y);
        q[1] = saturated_half2(a.z, a.w);
        q[2] = saturated_half2(b.x, b.y);
        q[3] = saturated_half2(b.z, b.w);
    }

    template <int U, int H>
    static __device__ __forceinline__ void values(const Step& st, float w[8]) {
        const float4 a = st.v[U][2 * H], b = st.v[U][2 * H + 1];
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step&) {
        return __floats2half2_rn(1.f, 0.f);
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step&) {
        return make_float2(1.f, 0.f);
    }
};

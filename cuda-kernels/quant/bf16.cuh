// BF16: plain values, w = code; codes are rounded to half, `values` are exact.
//
// GGUF: 2 bytes a value, the upper half of an f32.
// Group on the device: as F16.
#pragma once
#include "f16.cuh"

struct BF16 {
    static constexpr int ID = 30, LEN = 1, BYTES = 2, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * UNIT * BYTES;
    static constexpr bool WIDE = true, HAS_SCALE_HALF = true;
    static_assert(GROUP == F16::GROUP, "as F16");
    using Step = F16::Step;

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int n_values, uint8_t* dst, int lane) {
        F16::rearrange(src, row_bytes, n_rows, n_values, dst, lane);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int n_units, int lane) {
        F16::load(st, tile, s, n_units, lane);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        float w[8];
        values<U, H>(st, w);
#pragma unroll
        for (int p = 0; p < 4; p++) q[p] = saturated_half2(w[2 * p], w[2 * p + 1]);
    }

    template <int U, int H>
    static __device__ __forceinline__ void values(const Step& st, float w[8]) {
        const uint4 v = st.q[U][H];
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            w[2 * p] = __uint_as_float(pairs[p] << 16);
            w[2 * p + 1] = __uint_as_float(pairs[p] & 0xffff0000);
        }
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

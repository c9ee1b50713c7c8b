// F16: plain values, w = code.
//
// GGUF: 2 bytes a value.
// Group on the device (1024 bytes, 32 values of k): for row r, then for row r + 8, 32
// lanes x 16 bytes: eight values.
#pragma once
#include "unit.cuh"

struct F16 {
    static constexpr int ID = 1, LEN = 1, BYTES = 2, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * UNIT * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static_assert(GROUP == 2 * 32 * 16, "rows r, rows r + 8");
    struct Step {
        uint4 q[UNITS][2];
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
            for (int h = 0; h < 2; h++) st.q[u][h] = stream_if<uint4>(there, unit, 32 * h + lane);
        }
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        const uint4 v = st.q[U][H];
        q[0] = as_half2(v.x);
        q[1] = as_half2(v.y);
        q[2] = as_half2(v.z);
        q[3] = as_half2(v.w);
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

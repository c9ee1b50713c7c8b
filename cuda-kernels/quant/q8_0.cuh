// Q8_0: 32 values in 34 bytes, w = d * q.
//
// GGUF block: f16 d, 32 signed bytes.
// Group on the device (544 bytes): 32 lanes x 16 bytes: eight values of row r, then of
// row r + 8, each plus 128; then 8 times d of rows r and r + 8.
#pragma once
#include "unit.cuh"

struct Q8_0 {
    static constexpr int ID = 8, LEN = 32, BYTES = 34, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static_assert(GROUP == 32 * 16 + 8 * 4, "values, d");
    struct Step {
        uint4 q[UNITS];
        uint32_t d[UNITS];
    };

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        for (int i = 0; i < 16; i++) {
            const int row = r + i / 8 * 8;
            dst[lane * 16 + i] = row < n_rows ? src[row * row_bytes + 2 + 8 * c + i % 8] ^ 0x80 : 0x80;
        }
        if (lane < 8) ((uint32_t*)(dst + 512))[lane] = halves_of_rows(src, row_bytes, n_rows, lane, 0);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int n_units, int lane) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint8_t* unit = tile + (size_t)(s * UNITS + u) * GROUP;
            const bool there = s * UNITS + u < n_units;
            st.q[u] = stream_if<uint4>(there, unit, lane);
            st.d[u] = stream_if<uint32_t>(there, unit + 512, lane / 4);
        }
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        const uint32_t a = word<2 * H>(st.q[U]), b = word<2 * H + 1>(st.q[U]);
        q[0] = signed_bytes<0>(a);
        q[1] = signed_bytes<2>(a);
        q[2] = signed_bytes<0>(b);
        q[3] = signed_bytes<2>(b);
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return half_of<H>(st.d[U]);
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        return __half22float2(scale_half<U, H>(st));
    }
};

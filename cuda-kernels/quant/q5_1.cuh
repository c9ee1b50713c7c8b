// Q5_1: 32 values in 24 bytes, w = d * q + m, 5-bit q.
//
// GGUF block: f16 d, f16 m, u32 of fifth bits (bit i: value i), 16 bytes of nibbles:
// byte l holds value l (low) and l + 16 (high).
// Group on the device (384 bytes): 32 lanes x 8 bytes: the nibble words of rows r and
// r + 8; 32 lanes x 2 bytes: the fifth bits of both rows; then 8 times (d, m) of row r
// and (d, m) of row r + 8.
#pragma once
#include "unit.cuh"

struct Q5_1 {
    static constexpr int ID = 7, LEN = 32, BYTES = 24, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int UPPER = 256, D = 320;
    static_assert(GROUP == D + 8 * 8, "nibbles, fifth bits, d and m");
    struct Step {
        uint2 low[UNITS];
        uint16_t upper[UNITS];
        uint2 d[UNITS];
    };

    // Value i of a GGUF block, 0..31.
    static __device__ __forceinline__ uint32_t quant(const uint8_t* block, int i) {
        const uint32_t low = block[8 + i % 16] >> (i / 16 * 4) & 15;
        return low | (block[4 + i / 8] >> (i % 8) & 1u) << 4;
    }

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        uint32_t upper = 0;
        for (int h = 0; h < 2; h++) {
            const int row = r + 8 * h;
            uint32_t low = 0;
            if (row < n_rows) {
                const uint8_t* block = src + row * row_bytes;
                for (int i = 0; i < 8; i++) {
                    const uint32_t q = quant(block, 8 * c + i);
                    low |= (q & 15) << nibble_at(i);
                    upper |= (q >> 4) << upper_at<1>(h, i);
                }
            }
            ((uint32_t*)dst)[lane * 2 + h] = low;
        }
        // Two slots fill the lower byte of each half.
        ((uint16_t*)(dst + UPPER))[lane] = (uint16_t)((upper & 0xff) | upper >> 8);
        if (lane < 8) {
            uint32_t* out = (uint32_t*)(dst + D) + lane * 2;
            const uint32_t d = halves_of_rows(src, row_bytes, n_rows, lane, 0);
            const uint32_t m = halves_of_rows(src, row_bytes, n_rows, lane, 2);
            out[0] = (d & 0xffff) | m << 16;
            out[1] = d >> 16 | (m & 0xffff0000);
        }
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int n_units, int lane) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint8_t* unit = tile + (size_t)(s * UNITS + u) * GROUP;
            const bool there = s * UNITS + u < n_units;
            st.low[u] = stream_if<uint2>(there, unit, lane);
            st.upper[u] = stream_if<uint16_t>(there, unit + UPPER, lane);
            st.d[u] = stream_if<uint2>(there, unit + D, lane / 4);
        }
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        const uint32_t upper = st.upper[U];
        tall_codes<1, H, 0>(H ? st.low[U].y : st.low[U].x, upper | upper << 8, q);
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return as_half2(H ? st.d[U].y : st.d[U].x);
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        return __half22float2(scale_half<U, H>(st));
    }
};

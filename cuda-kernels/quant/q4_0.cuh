// Q4_0: 32 values in 18 bytes, w = d * (q - 8), 4-bit q.
//
// GGUF block: f16 d, 16 bytes of nibbles: byte l holds value l (low) and l + 16 (high).
// Group on the device (288 bytes): 32 lanes x 8 bytes: the nibble words of rows r and
// r + 8; then 8 times d of rows r and r + 8.
#pragma once
#include "unit.cuh"

struct Q4_0 {
    static constexpr int ID = 2, LEN = 32, BYTES = 18, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int D = 256;
    static_assert(GROUP == D + 8 * 4, "nibbles, d");
    struct Step {
        uint2 low[UNITS];
        uint32_t d[UNITS];
    };

    // Value i of a GGUF block, 0..15.
    static __device__ __forceinline__ uint32_t quant(const uint8_t* block, int i) {
        return block[2 + i % 16] >> (i / 16 * 4) & 15;
    }

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        for (int h = 0; h < 2; h++) {
            const int row = r + 8 * h;
            uint32_t low = 0;
            if (row < n_rows) {
                const uint8_t* block = src + row * row_bytes;
                low = or_of_8([&](int i) { return quant(block, 8 * c + i) << nibble_at(i); });
            }
            ((uint32_t*)dst)[lane * 2 + h] = low;
        }
        if (lane < 8) ((uint32_t*)(dst + D))[lane] = halves_of_rows(src, row_bytes, n_rows, lane, 0);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int n_units, int lane) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint8_t* unit = tile + (size_t)(s * UNITS + u) * GROUP;
            const bool there = s * UNITS + u < n_units;
            st.low[u] = stream_if<uint2>(there, unit, lane);
            st.d[u] = stream_if<uint32_t>(there, unit + D, lane / 4);
        }
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        nibble_codes<8>(H ? st.low[U].y : st.low[U].x, q);
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

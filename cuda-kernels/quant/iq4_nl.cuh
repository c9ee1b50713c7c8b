// IQ4_NL: 32 values in 18 bytes, w = d * TABLE[q], 4-bit q.
//
// GGUF block: f16 d, 16 bytes of nibbles: byte l holds value l (low) and l + 16 (high).
// Group on the device (288 bytes): 32 lanes x 8 bytes: for rows r and r + 8 the nibbles
// of eight values in k order; then 8 times d of rows r and r + 8.
#pragma once
#include "unit.cuh"

// The table's values, -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, for
// eight nibbles in k order. A byte permutation looks up four nibbles in eight bytes: one
// for each half of the table (bytes plus 128), one that chooses between them by bit 3.
__device__ __forceinline__ void iq4_codes(uint32_t w, half2 q[4]) {
    uint32_t low = w & 0x77777777, choice = and_or(w >> 1, 0x44444444, 0x32103210);
#pragma unroll
    for (int i = 0; i < 2; i++, low >>= 16, choice >>= 16) {
        const uint32_t negative = __byte_perm(0x3f2d1801, 0x766a5d4f, low);
        const uint32_t positive = __byte_perm(0xa6998d81, 0xf1d9c5b5, low);
        const uint32_t bytes = __byte_perm(negative, positive, choice);
        q[2 * i] = signed_bytes<0>(bytes);
        q[2 * i + 1] = signed_bytes<2>(bytes);
    }
}

struct IQ4_NL {
    static constexpr int ID = 20, LEN = 32, BYTES = 18, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int D = 256;
    static_assert(GROUP == D + 8 * 4, "nibbles, d");
    struct Step {
        uint2 low[UNITS];
        uint32_t d[UNITS];
    };

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        for (int h = 0; h < 2; h++) {
            const int row = r + 8 * h;
            uint32_t low = 0;
            if (row < n_rows) {
                const uint8_t* qs = src + row * row_bytes + 2 + c % 2 * 8;
                low = or_of_8([&](int i) { return (qs[i] >> (c / 2 * 4) & 15u) << (4 * i); });
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
        iq4_codes(H ? st.low[U].y : st.low[U].x, q);
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

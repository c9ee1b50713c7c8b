// Q2_K: 256 values in 84 bytes, w = d * s * q - dmin * m, 2-bit q, 4-bit s, m per 16.
//
// GGUF block: 16 bytes: s (low) and m (high); 64 bytes: byte 32 h + l holds values
// 128 h + 32 j + l at bit 2 j; f16 d, f16 dmin.
// Group on the device (1344 bytes): the values, twice 32 lanes x 16 bytes, one word a
// unit: pairs of values 2 bits apart, row r + 8 8 bits above row r; 16 x 16 bytes: for row
// r and each half of a unit two words for row r and two for row r + 8: nibble u of the low
// half s, of the high half m of units u, u + 4; then 8 times (d, dmin) of rows r and r + 8.
#pragma once
#include "unit.cuh"

// Words of 2-bit numbers: pairs 2 bits apart, a pair's second 16 bits above its first.
__host__ __device__ constexpr int pair_at(int i) {
    return i / 2 * 2 + i % 2 * 16;
}

// `rearrange` of the 2-bit fields that start at byte FIELDS of a block, as in Q2_K.
template <int FIELDS>
__device__ __forceinline__ void rearrange_bit_pairs(const uint8_t* src, size_t row_bytes, int n_rows,
                                                    uint32_t* out, int lane) {
    for (int unit = 0; unit < 8; unit++) {
        uint32_t w = 0;
        for (int h = 0; h < 2; h++) {
            const int row = lane / 4 + 8 * h;
            if (row >= n_rows) continue;
            const uint8_t* qs = src + row * row_bytes + FIELDS + unit / 4 * 32 + lane % 4 * 8;
            w |= or_of_8([&](int i) { return (qs[i] >> (unit % 4 * 2) & 3u) << (8 * h + pair_at(i)); });
        }
        out[(unit / 4 * 32 + lane) * 4 + unit % 4] = w;
    }
}

// The codes of eight values whose lower bits are in the low bytes of both halves of `w`;
// `upper(pair)` gives the bits to put above them, in place.
template <int OFFSET, class F>
__device__ __forceinline__ void bit_pair_codes(uint32_t w, F upper, half2 q[4]) {
    q[0] = shifted_ints<0>(and_or(w, 0x00030003, MAGIC) | upper(0), OFFSET);
    q[1] = shifted_ints<2>(and_or(w, 0x000c000c, MAGIC) | upper(1), OFFSET);
    q[2] = shifted_ints<4>(and_or(w, 0x00300030, MAGIC) | upper(2), OFFSET);
    q[3] = shifted_ints<6>(and_or(w, 0x00c000c0, MAGIC) | upper(3), OFFSET);
}

struct Q2_K {
    static constexpr int ID = 10, LEN = 256, BYTES = 84, UNITS = 8;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int SCALES = 1024, D = 1280;
    static_assert(GROUP == D + 8 * 8, "values, scales, d and dmin");
    struct Step {
        uint4 low[2];
        uint4 scales;
        uint2 d;
    };

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        uint32_t* out = (uint32_t*)dst;
        rearrange_bit_pairs<16>(src, row_bytes, n_rows, out, lane);
        if (lane >= 16) return;
        for (int i = 0; i < 4; i++) {
            const int row = lane / 2 + i / 2 * 8;
            uint32_t w = 0;
            for (int u = 0; u < 4 && row < n_rows; u++) {
                const uint32_t s = src[row * row_bytes + 2 * (i % 2 * 4 + u) + lane % 2];
                w |= (s & 15) << (4 * u) | (s >> 4) << (16 + 4 * u);
            }
            out[SCALES / 4 + lane * 4 + i] = w;
        }
        uint32_t d = 0;
        if (lane < n_rows) memcpy(&d, src + lane * row_bytes + 80, 4);
        out[D / 4 + lane % 8 * 2 + lane / 8] = d;
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int, int lane) {
        const uint8_t* group = tile + (size_t)s * GROUP;
        st.low[0] = stream<uint4>(group, lane);
        st.low[1] = stream<uint4>(group, 32 + lane);
        st.scales = stream<uint4>(group + SCALES, lane / 2);
        st.d = stream<uint2>(group + D, lane / 4);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        bit_pair_codes<0>(word<U % 4>(st.low[U / 4]) >> (8 * H), [](int) { return 0u; }, q);
    }

    // (s, m) of unit U.
    template <int U, int H>
    static __device__ __forceinline__ half2 factors(const Step& st) {
        return small_ints(word<H * 2 + U / 4>(st.scales) >> (U % 4 * 4), 0x000f000f);
    }

    // The second of a word's halves is subtracted: its sign is flipped.
    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return __hmul2(factors<U, H>(st), as_half2((H ? st.d.y : st.d.x) ^ 0x80000000));
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        const float2 sm = __half22float2(factors<U, H>(st));
        const float2 d = __half22float2(as_half2(H ? st.d.y : st.d.x));
        return make_float2(sm.x * d.x, -sm.y * d.y);
    }
};

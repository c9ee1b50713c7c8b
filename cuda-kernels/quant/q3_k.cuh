// Q3_K: 256 values in 110 bytes, w = d * (s - 32) * (q - 4), 3-bit q, 6-bit s per 16.
//
// GGUF block: 32 bytes of upper bits (bit j of byte l: value 32 j + l); 64 bytes: byte
// 32 h + l holds bits 0, 1 of values 128 h + 32 j + l at bit 2 j; 12 bytes of scales: low
// nibbles, then high nibbles of bytes 0..7 are the lower bits of s 0..7, 8..15, bits 2 j
// of byte 8 + g the upper bits of s 4 j + g; f16 d.
// Group on the device (1760 bytes): lower bits, twice 32 lanes x 16 bytes, one word a
// unit: pairs of values 2 bits apart, row r + 8 8 bits above row r; upper bits, 32 lanes x
// 16 bytes, one word for two units; six-bit words, three times 16 x 4 bytes: for row r and
// each half of a unit, s of the eight units (low halves row r, high halves row r + 8);
// then 8 times d of rows r and r + 8.
#pragma once
#include "q2_k.cuh"

struct Q3_K {
    static constexpr int ID = 11, LEN = 256, BYTES = 110, UNITS = 8;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int UPPER = 1024, SCALES = 1536, D = 1728;
    static_assert(GROUP == D + 8 * 4, "lower bits, upper bits, scales, d");
    struct Step {
        uint4 low[2];
        uint4 upper;
        uint32_t scales[3];
        uint32_t d;
    };

    // Where the upper bit of value i lies in a word for two units; slot 2 (unit % 2) + H.
    static __host__ __device__ constexpr int upper_bit(int slot, int i) {
        return slot / 2 * 8 + slot % 2 + pair_at(i);
    }

    // s of GGUF group g, 0..63.
    static __device__ __forceinline__ uint32_t packed_scale(const uint8_t* s, int g) {
        return (s[g % 8] >> (g / 8 * 4) & 15u) | (s[8 + g % 4] >> (g / 4 * 2) & 3u) << 4;
    }

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        uint32_t* out = (uint32_t*)dst;
        rearrange_bit_pairs<32>(src, row_bytes, n_rows, out, lane);
        uint32_t upper = 0;
        for (int unit = 0; unit < 8; unit++) {
            if (unit % 2 == 0) upper = 0;
            for (int h = 0; h < 2; h++) {
                if (r + 8 * h >= n_rows) continue;
                const uint8_t* planes = src + (r + 8 * h) * row_bytes + 8 * c;
                upper |= or_of_8([&](int i) {
                    return (planes[i] >> unit & 1u) << upper_bit(unit % 2 * 2 + h, i);
                });
            }
            if (unit % 2) out[UPPER / 4 + lane * 4 + unit / 2] = upper;
        }
        if (lane < 16) {
            uint32_t words[3] = {0, 0, 0};
            for (int h = 0; h < 2; h++) {
                const int row = lane / 2 + 8 * h;
                if (row >= n_rows) continue;
                uint32_t s[8];
#pragma unroll
                for (int u = 0; u < 8; u++) s[u] = packed_scale(src + row * row_bytes + 96, 2 * u + lane % 2);
                pack_six_bits(s, 16 * h, words);
            }
            for (int i = 0; i < 3; i++) out[SCALES / 4 + 16 * i + lane] = words[i];
        }
        if (lane < 8) out[D / 4 + lane] = halves_of_rows(src, row_bytes, n_rows, lane, 108);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int, int lane) {
        const uint8_t* group = tile + (size_t)s * GROUP;
        st.low[0] = stream<uint4>(group, lane);
        st.low[1] = stream<uint4>(group, 32 + lane);
        st.upper = stream<uint4>(group + UPPER, lane);
#pragma unroll
        for (int i = 0; i < 3; i++) st.scales[i] = stream<uint32_t>(group + SCALES, 16 * i + lane / 2);
        st.d = stream<uint32_t>(group + D, lane / 4);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        constexpr int at = upper_bit(U % 2 * 2 + H, 0);
        const uint32_t low = word<U % 4>(st.low[U / 4]) >> (8 * H), word_up = word<U / 2>(st.upper);
        const uint32_t up = at < 2 ? word_up << (2 - at) : word_up >> (at - 2);
        bit_pair_codes<4>(low, [&](int pair) { return up & 0x00040004u << (2 * pair); }, q);
    }

    // s - 32 of unit U for rows r and r + 8.
    template <int U>
    static __device__ __forceinline__ half2 factors(const Step& st) {
        return six_bits<U>(st.scales[0], st.scales[1], st.scales[2], 32.f);
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return half_of<H>(as_u32(__hmul2(factors<U>(st), as_half2(st.d))));
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        const float2 s = __half22float2(factors<U>(st)), d = __half22float2(as_half2(st.d));
        return make_float2(H ? s.y * d.y : s.x * d.x, 0.f);
    }
};

// IQ4_XS: 256 values in 136 bytes, w = d * (s - 32) * TABLE[q], 4-bit q into IQ4_NL's
// table, 6-bit s per 32.
//
// GGUF block: f16 d, u16 of upper scale bits (two at bit 2 g), 4 bytes of lower scale
// bits (nibbles in order), 128 bytes of nibbles: byte 16 g + l holds value 32 g + l (low)
// and 32 g + 16 + l (high).
// Group on the device (2176 bytes): four times 32 lanes x 16 bytes: the nibbles of two
// units in k order (row r, row r + 8 of the first, then of the second); then 8 times 16
// bytes: six-bit words with the s of row r in the low and of row r + 8 in the high halves,
// and d of both rows.
#pragma once
#include "iq4_nl.cuh"

struct IQ4_XS {
    static constexpr int ID = 23, LEN = 256, BYTES = 136, UNITS = 8;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int HEADS = 2048;
    static_assert(GROUP == HEADS + 8 * 16, "nibbles, heads");
    struct Step {
        uint4 low[4];
        uint4 head;
    };

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        uint32_t* out = (uint32_t*)dst;
        for (int unit = 0; unit < 8; unit++) {
            for (int h = 0; h < 2; h++) {
                const int row = r + 8 * h;
                uint32_t w = 0;
                if (row < n_rows) {
                    const uint8_t* qs = src + row * row_bytes + 8 + unit * 16 + c % 2 * 8;
                    w = or_of_8([&](int i) { return (qs[i] >> (c / 2 * 4) & 15u) << (4 * i); });
                }
                out[(unit / 2 * 32 + lane) * 4 + unit % 2 * 2 + h] = w;
            }
        }
        if (lane < 8) {
            uint32_t head[3] = {0, 0, 0};
            for (int h = 0; h < 2; h++) {
                if (lane + 8 * h >= n_rows) continue;
                const uint8_t* block = src + (lane + 8 * h) * row_bytes;
                const uint32_t upper = block[2] | block[3] << 8;
                uint32_t s[8];
#pragma unroll
                for (int g = 0; g < 8; g++)
                    s[g] = (block[4 + g / 2] >> (g % 2 * 4) & 15u) | (upper >> (2 * g) & 3) << 4;
                pack_six_bits(s, 16 * h, head);
            }
            uint32_t* to = out + HEADS / 4 + lane * 4;
            for (int i = 0; i < 3; i++) to[i] = head[i];
            to[3] = halves_of_rows(src, row_bytes, n_rows, lane, 0);
        }
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int, int lane) {
        const uint8_t* group = tile + (size_t)s * GROUP;
#pragma unroll
        for (int i = 0; i < 4; i++) st.low[i] = stream<uint4>(group, 32 * i + lane);
        st.head = stream<uint4>(group + HEADS, lane / 4);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        iq4_codes(word<U % 2 * 2 + H>(st.low[U / 2]), q);
    }

    // s - 32 of unit U for rows r and r + 8.
    template <int U>
    static __device__ __forceinline__ half2 factors(const Step& st) {
        return six_bits<U>(st.head.x, st.head.y, st.head.z, 32.f);
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return half_of<H>(as_u32(__hmul2(factors<U>(st), as_half2(st.head.w))));
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        const float2 s = __half22float2(factors<U>(st)), d = __half22float2(as_half2(st.head.w));
        return make_float2(H ? s.y * d.y : s.x * d.x, 0.f);
    }
};

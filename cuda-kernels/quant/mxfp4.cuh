// MXFP4: 32 values in 17 bytes, w = 2^(e - 128) * code; the code is twice the e2m1 number.
//
// GGUF block: e, 16 bytes of nibbles: byte l holds value l (low) and l + 16 (high). A
// nibble is sign, two bits of exponent, one of mantissa.
// Group on the device (272 bytes): 32 lanes x 8 bytes: a word for row r and one for row
// r + 8; byte i holds value i at bits 7 (sign) and 1..3, and value i + 4 at bits 0 (sign)
// and 4..6; then 8 times e of row r and e of row r + 8.
#pragma once
#include "unit.cuh"

struct MXFP4 {
    static constexpr int ID = 39, LEN = 32, BYTES = 17, UNITS = 4;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    // A scale has f32's range; as a half it is exact from 2^-24 to 2^15. Models stay far
    // inside: beyond, a block's largest value would be below 1e-6 or above 3e5.
    static constexpr bool WIDE = false, HAS_SCALE_HALF = false;
    static constexpr int E = 256;
    static_assert(GROUP == E + 8 * 2, "nibbles, e");
    struct Step {
        uint2 low[UNITS];
        uint16_t e[UNITS];
    };

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        for (int h = 0; h < 2; h++) {
            const int row = r + 8 * h;
            uint32_t low = 0;
            if (row < n_rows) {
                const uint8_t* qs = src + row * row_bytes + 1 + c % 2 * 8;
                low = or_of_8([&](int i) {
                    const uint32_t q = qs[i] >> (c / 2 * 4) & 15, sign = q >> 3, rest = q & 7;
                    return (i < 4 ? sign << 7 | rest << 1 : sign | rest << 4) << (i % 4 * 8);
                });
            }
            ((uint32_t*)dst)[lane * 2 + h] = low;
        }
        if (lane < TILE_ROWS) dst[E + lane % 8 * 2 + lane / 8] = lane < n_rows ? src[lane * row_bytes] : 0;
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int n_units, int lane) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint8_t* unit = tile + (size_t)(s * UNITS + u) * GROUP;
            const bool there = s * UNITS + u < n_units;
            st.low[u] = stream_if<uint2>(there, unit, lane);
            st.e[u] = stream_if<uint16_t>(there, unit + E, lane / 4);
        }
    }

    // With its exponent and mantissa at the same places of a half (bits 9..11, the upper
    // byte's 1..3), an e2m1 number, zero and subnormal included, is 2^-14 times itself.
    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        const uint32_t w = H ? st.low[U].y : st.low[U].x;
        const uint32_t first = w & 0x8e8e8e8e, last = and_or(w >> 3, 0x0e0e0e0e, w << 7 & 0x80808080);
        const half2 up = __float2half2_rn(32768.f);
        q[0] = __hmul2(as_half2(__byte_perm(first, 0, 0x1404)), up);
        q[1] = __hmul2(as_half2(__byte_perm(first, 0, 0x3424)), up);
        q[2] = __hmul2(as_half2(__byte_perm(last, 0, 0x1404)), up);
        q[3] = __hmul2(as_half2(__byte_perm(last, 0, 0x3424)), up);
    }

    // e of 0 and 1 give f32 subnormals; 255 counts as a number.
    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        const uint32_t e = H ? st.e[U] >> 8 : st.e[U] & 255;
        return make_float2(__uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0.f);
    }
};

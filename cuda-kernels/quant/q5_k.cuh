// Q5_K: 256 values in 176 bytes, w = d * s * q - dmin * m with 5-bit q, 6-bit s, m per 32.
//
// GGUF block: f16 d, f16 dmin, 12 bytes of scales as in Q4_K, 32 bytes of fifth bits (bit
// j of byte l: value 32 j + l), 128 bytes of nibbles as in Q4_K.
// Group on the device (2816 bytes): nibbles as in Q4_K; the fifth bits, 32 lanes x 16
// bytes, one word for two units; heads as in Q4_K.
#pragma once
#include "q4_k.cuh"

struct Q5_K {
    static constexpr int ID = 13, LEN = 256, BYTES = 176, UNITS = 8;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int UPPER = 2048, HEADS = 2560;
    static_assert(GROUP == HEADS + TILE_ROWS * 16, "nibbles, fifth bits, heads");
    struct Step {
        uint4 low[4];
        uint4 upper;
        uint4 head[2];
    };

    // Value i of a GGUF block, 0..31.
    static __device__ __forceinline__ uint32_t quant(const uint8_t* block, int i) {
        const uint32_t low = block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        return low | (block[16 + i % 32] >> (i / 32) & 1u) << 4;
    }

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        uint32_t* out = (uint32_t*)dst;
        uint32_t upper = 0;
        for (int unit = 0; unit < 8; unit++) {
            if (unit % 2 == 0) upper = 0;
            for (int h = 0; h < 2; h++) {
                const int row = r + 8 * h;
                uint32_t low = 0;
                if (row < n_rows) {
                    const uint8_t* block = src + row * row_bytes;
                    for (int i = 0; i < 8; i++) {
                        const uint32_t q = quant(block, 32 * unit + 8 * c + i);
                        low |= (q & 15) << nibble_at(i);
                        upper |= (q >> 4) << upper_at<1>(unit % 2 * 2 + h, i);
                    }
                }
                out[(unit / 2 * 32 + lane) * 4 + unit % 2 * 2 + h] = low;
            }
            if (unit % 2) out[UPPER / 4 + lane * 4 + unit / 2] = upper;
        }
        if (lane < TILE_ROWS) Q4_K::rearrange_head(src, row_bytes, n_rows, dst + HEADS, lane);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int, int lane) {
        const uint8_t* group = tile + (size_t)s * GROUP;
#pragma unroll
        for (int i = 0; i < 4; i++) st.low[i] = stream<uint4>(group, 32 * i + lane);
        st.upper = stream<uint4>(group + UPPER, lane);
        st.head[0] = stream<uint4>(group + HEADS, lane / 4);
        st.head[1] = stream<uint4>(group + HEADS, lane / 4 + 8);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        tall_codes<1, U % 2 * 2 + H, 0>(word<U % 2 * 2 + H>(st.low[U / 2]), word<U / 2>(st.upper), q);
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return Q4_K::head_scale_half<U>(st.head[H]);
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        return Q4_K::head_scale<U>(st.head[H]);
    }
};

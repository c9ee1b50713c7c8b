// Q4_K: 256 values in 144 bytes, w = d * s * q - dmin * m with 6-bit s, m per 32.
//
// GGUF block: f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles: byte
// 32 g + i holds value 64 g + i (low) and 64 g + 32 + i (high).
// Group on the device (2304 bytes): four times 32 lanes x 16 bytes: the nibbles of two
// units (row r, row r + 8 of the first, then of the second), pairs of values 16 bits
// apart; then 16 bytes a row: (d, dmin), then three words whose low halves hold the
// eight s and high halves the eight m: two 6-bit numbers each, with s6, s7 (m6, m7) in
// the four bits left over.
#pragma once
#include "unit.cuh"

struct Q4_K {
    static constexpr int ID = 12, LEN = 256, BYTES = 144, UNITS = 8;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int HEADS = 2048;
    static_assert(GROUP == HEADS + TILE_ROWS * 16, "nibbles, heads");
    struct Step {
        uint4 q[4];
        uint4 head[2];
    };

    // s and m of sub-block j, GGUF packing.
    static __device__ __forceinline__ uint32_t packed(const uint8_t* s, int j, bool min) {
        const int o = min ? 4 : 0;
        if (j < 4) return s[j + o] & 63;
        const uint32_t low = min ? s[j + 4] >> 4 : s[j + 4] & 15;
        return low | (s[j - 4 + o] >> 6) << 4;
    }

    // The 16 bytes of a row that hold its scales; Q5_K has the same.
    static __device__ __forceinline__ void rearrange_head(const uint8_t* src, size_t row_bytes, int n_rows,
                                                          uint8_t* heads, int row) {
        uint32_t head[4] = {0, 0, 0, 0};
        if (row < n_rows) {
            const uint8_t* block = src + row * row_bytes;
            memcpy(&head[0], block, 4);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t v[8];
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = packed(block + 4, j, half == 1);
                pack_six_bits(v, 16 * half, head + 1);
            }
        }
        for (int i = 0; i < 4; i++) ((uint32_t*)heads)[row * 4 + i] = head[i];
    }

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        uint32_t* out = (uint32_t*)dst;
        for (int unit = 0; unit < 8; unit++) {
            for (int h = 0; h < 2; h++) {
                const int row = r + 8 * h;
                uint32_t w = 0;
                if (row < n_rows) {
                    const uint8_t* qs = src + row * row_bytes + 16 + unit / 2 * 32 + 8 * c;
                    w = or_of_8([&](int i) { return (qs[i] >> unit % 2 * 4 & 15u) << nibble_at(i); });
                }
                out[(unit / 2 * 32 + lane) * 4 + unit % 2 * 2 + h] = w;
            }
        }
        if (lane < TILE_ROWS) rearrange_head(src, row_bytes, n_rows, dst + HEADS, lane);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int, int lane) {
        const uint8_t* group = tile + (size_t)s * GROUP;
#pragma unroll
        for (int i = 0; i < 4; i++) st.q[i] = stream<uint4>(group, 32 * i + lane);
        st.head[0] = stream<uint4>(group + HEADS, lane / 4);
        st.head[1] = stream<uint4>(group + HEADS, lane / 4 + 8);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        nibble_codes<0>(word<U % 2 * 2 + H>(st.q[U / 2]), q);
    }

    // (d s, -dmin m) of unit U from a head.
    template <int U>
    static __device__ __forceinline__ half2 head_scale_half(uint4 head) {
        return __hmul2(six_bits<U>(head.y, head.z, head.w), as_half2(head.x ^ 0x80000000));
    }

    template <int U>
    static __device__ __forceinline__ float2 head_scale(uint4 head) {
        const float2 sm = __half22float2(six_bits<U>(head.y, head.z, head.w));
        const float2 d = __half22float2(as_half2(head.x));
        return make_float2(sm.x * d.x, -sm.y * d.y);
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return head_scale_half<U>(st.head[H]);
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        return head_scale<U>(st.head[H]);
    }
};

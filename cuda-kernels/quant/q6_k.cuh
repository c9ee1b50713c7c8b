// Q6_K: 256 values in 210 bytes, w = d * s * (q - 32), 6-bit q, signed 8-bit s per 16.
//
// GGUF block: 128 bytes of nibbles: byte 64 h + l holds value 128 h + l (low) and
// 128 h + 64 + l (high); 64 bytes of upper bits: byte 32 h + l holds those of values
// 128 h + 32 j + l at bit 2 j; 16 scales; f16 d.
// Group on the device (3360 bytes): the nibbles as in Q4_K, four times 32 lanes x 16
// bytes; upper bits, twice 32 lanes x 16 bytes, one word a unit; the scales: for row r
// and each half of a unit 16 bytes: s of the eight units for row r, then for row r + 8,
// each plus 128; then 8 times d of rows r and r + 8.
#pragma once
#include "unit.cuh"

struct Q6_K {
    static constexpr int ID = 14, LEN = 256, BYTES = 210, UNITS = 8;
    static constexpr int GROUP = TILE_ROWS * BYTES;
    static constexpr bool WIDE = false, HAS_SCALE_HALF = true;
    static constexpr int UPPER = 2048, SCALES = 3072, D = 3328;
    static_assert(GROUP == D + 8 * 4, "nibbles, upper bits, scales, d");
    struct Step {
        uint4 low[4];
        uint4 upper[2];
        uint4 scales;
        uint32_t d;
    };

    // Value i of a GGUF block, 0..63.
    static __device__ __forceinline__ uint32_t quant(const uint8_t* block, int i) {
        const int h = i / 128, l = i % 128;
        const uint32_t low = block[64 * h + l % 64] >> (l / 64 * 4) & 15;
        const uint32_t upper = block[128 + 32 * h + l % 32] >> (l / 32 * 2) & 3;
        return low | upper << 4;
    }

    static __device__ __forceinline__ void rearrange(const uint8_t* src, size_t row_bytes, int n_rows,
                                                     int, uint8_t* dst, int lane) {
        const int r = lane / 4, c = lane % 4;
        uint32_t* out = (uint32_t*)dst;
        for (int unit = 0; unit < 8; unit++) {
            uint32_t upper = 0;
            for (int h = 0; h < 2; h++) {
                const int row = r + 8 * h;
                uint32_t low = 0;
                if (row < n_rows) {
                    const uint8_t* block = src + row * row_bytes;
                    for (int i = 0; i < 8; i++) {
                        const uint32_t q = quant(block, 32 * unit + 8 * c + i);
                        low |= (q & 15) << nibble_at(i);
                        upper |= (q >> 4) << upper_at<2>(h, i);
                    }
                }
                out[(unit / 2 * 32 + lane) * 4 + unit % 2 * 2 + h] = low;
            }
            out[UPPER / 4 + (unit / 4 * 32 + lane) * 4 + unit % 4] = upper;
        }
        if (lane < 16) {
            for (int i = 0; i < 16; i++) {
                const int row = lane / 2 + i / 8 * 8, group = i % 8 * 2 + lane % 2;
                const uint8_t s = row < n_rows ? src[row * row_bytes + 192 + group] : 0;
                dst[SCALES + lane * 16 + i] = s ^ 0x80;
            }
        }
        if (lane < 8) ((uint32_t*)(dst + D))[lane] = halves_of_rows(src, row_bytes, n_rows, lane, 208);
    }

    static __device__ __forceinline__ void load(Step& st, const uint8_t* tile, int s, int, int lane) {
        const uint8_t* group = tile + (size_t)s * GROUP;
#pragma unroll
        for (int i = 0; i < 4; i++) st.low[i] = stream<uint4>(group, 32 * i + lane);
#pragma unroll
        for (int i = 0; i < 2; i++) st.upper[i] = stream<uint4>(group + UPPER, 32 * i + lane);
        st.scales = stream<uint4>(group + SCALES, lane / 2);
        st.d = stream<uint32_t>(group + D, lane / 4);
    }

    template <int U, int H>
    static __device__ __forceinline__ void codes(const Step& st, half2 q[4]) {
        tall_codes<2, H, 32>(word<U % 2 * 2 + H>(st.low[U / 2]), word<U % 4>(st.upper[U / 4]), q);
    }

    // s of unit U, twice.
    template <int U, int H>
    static __device__ __forceinline__ half2 factor(const Step& st) {
        constexpr uint32_t pick = 0x4040 + U % 4 * 0x0101;
        const uint32_t s = __byte_perm(word<H * 2 + U / 4>(st.scales), 0x64646464, pick);
        return __hsub2(as_half2(s), __float2half2_rn(1152.f));
    }

    template <int U, int H>
    static __device__ __forceinline__ half2 scale_half(const Step& st) {
        return __hmul2(factor<U, H>(st), half_of<H>(st.d));
    }

    template <int U, int H>
    static __device__ __forceinline__ float2 scale(const Step& st) {
        return make_float2(__low2float(factor<U, H>(st)) * __low2float(half_of<H>(st.d)), 0.f);
    }
};

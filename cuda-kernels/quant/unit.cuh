// How weights of matrix products lie on the device, and what a type's file gives.
//
// A matrix [k, m] is cut into row tiles of 16 rows (the last one padded with zero
// rows), a tile into units of 32 values of k (padded with zeros for F32, F16 and
// BF16 only). Lane l = 4 r + c of a warp owns, in each unit, values 8 c .. 8 c + 7 of
// rows r and r + 8: two k-steps of `mma.m16n8k16`, whose k order is free as long as
// the other operand uses the same, so the activations stay in natural order.
// A row tile takes 16 times the bytes of a GGUF row; inside it the bits of all lanes
// lie side by side, so that a warp reads whole 128-byte lines.
//
// quant/<name>.cuh defines `struct <NAME>` (the file's name in capitals) with
//
//   ID, LEN, BYTES   GGUF id, values and bytes of a GGUF block (LEN 1: plain values)
//   WIDE             codes are rounded to half; `values<U, H>` gives the 8 values in f32
//   HAS_SCALE_HALF   `scale_half<U, H>` gives (d, m) as halves by half arithmetic
//   UNITS            units of 32 values that one `load` brings
//   struct Step      registers of a lane for UNITS units
//   GROUP            bytes of one group: 16 rows x max(LEN, 32) values of k
//   rearrange        GGUF blocks of 16 rows -> one group, by one warp: rows at or beyond
//                    n_rows become zeros, and for plain types values at or beyond n_values
//   load             step s < ceil(n_units / UNITS) of a row tile into registers; units
//                    at or beyond n_units are not touched and decode to something finite
//   codes<U, H>      the 8 values of row r (H = 0) or r + 8 (H = 1) in unit U of the
//                    step, as exact small numbers, pairs in k order
//   scale<U, H>      (d, m) with w = code * d + m, f32, for this lane's 8 values
//
// all `static __device__ __forceinline__`; U and H are compile-time constants. A row tile
// is its groups one after the other. GGUF rows may start at any address: bytes are read.
#pragma once
#include "../common.cuh"

constexpr int TILE_ROWS = 16;
constexpr int UNIT = 32;

// (a & b) | c in one instruction.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

__device__ __forceinline__ half2 as_half2(uint32_t x) {
    half2 h;
    memcpy(&h, &x, 4);
    return h;
}

__device__ __forceinline__ uint32_t as_u32(half2 h) {
    uint32_t x;
    memcpy(&x, &h, 4);
    return x;
}

// Integers 0..1023 in the low ten bits of each half are 1024 + i as halves once the
// exponent 0x6400 is set; subtracting 1024 is exact.
constexpr uint32_t MAGIC = 0x64006400;

__device__ __forceinline__ half2 small_ints(uint32_t x, uint32_t mask, float offset = 0.f) {
    return __hsub2(as_half2(and_or(x, mask, MAGIC)), __float2half2_rn(1024.f + offset));
}

// Bytes AT and AT + 1 of `w`, stored with 128 added, as signed halves.
template <int AT>
__device__ __forceinline__ half2 signed_bytes(uint32_t w) {
    constexpr uint32_t pick = 0x4140 + AT * 0x0101;
    return __hsub2(as_half2(__byte_perm(w, 0x64646464, pick)), __float2half2_rn(1152.f));
}

// Numbers of up to ten bits that start at bit SHIFT of each half, less `offset`.
template <int SHIFT>
__device__ __forceinline__ half2 shifted_ints(uint32_t with_magic, int offset) {
    constexpr float unit = 1.f / (1 << SHIFT);
    const half2 x = as_half2(with_magic);
    if (SHIFT == 0) return __hsub2(x, __float2half2_rn(1024.f + offset));
    return __hfma2(x, __float2half2_rn(unit), __float2half2_rn(-1024.f * unit - offset));
}

// Nibble words: eight 4-bit numbers, pairs 4 bits apart, a pair's second 16 bits above
// its first.
__host__ __device__ constexpr int nibble_at(int i) {
    return i / 2 * 4 + i % 2 * 16;
}

template <int OFFSET>
__device__ __forceinline__ void nibble_codes(uint32_t w, half2 q[4]) {
#pragma unroll
    for (int p = 0; p < 2; p++, w >>= 8) {
        q[2 * p] = shifted_ints<0>(and_or(w, 0x000f000f, MAGIC), OFFSET);
        q[2 * p + 1] = shifted_ints<4>(and_or(w, 0x00f000f0, MAGIC), OFFSET);
    }
}

// Words of upper bits, BITS (1 or 2) a number: a word holds the upper bits of 4 / BITS
// nibble words (slots), each shifted once for two pairs, which lie 4 bits apart as their
// nibbles do. Two bits: those of a byte belong to the nibbles of the same byte.
template <int BITS>
__host__ __device__ constexpr int upper_at(int slot, int i) {
    const int j = 2 * slot + i / 4, pair = i / 2 % 2 * 4 + i % 2 * 16;
    return BITS == 1 ? j % 4 + j / 4 * 8 + pair : slot * 2 + i / 4 * 8 + pair;
}

template <int BITS, int SLOT, int OFFSET>
__device__ __forceinline__ void tall_codes(uint32_t low, uint32_t upper, half2 q[4]) {
    constexpr uint32_t mask = BITS == 1 ? 0x00100010 : 0x00300030;
#pragma unroll
    for (int p = 0; p < 2; p++, low >>= 8) {
        const int at = upper_at<BITS>(SLOT, 4 * p);
        const uint32_t up = at < 4 ? upper << (4 - at) : upper >> (at - 4);
        const uint32_t even = and_or(low, 0x000f000f, MAGIC), odd = and_or(low, 0x00f000f0, MAGIC);
        q[2 * p] = shifted_ints<0>(and_or(up, mask, even), OFFSET);
        q[2 * p + 1] = shifted_ints<4>(and_or(up, mask << 4, odd), OFFSET);
    }
}

// Eight 6-bit numbers in the low (at = 0) or high (at = 16) halves of three words: two
// in the lower twelve bits of each, and of numbers 6 and 7 together four bits in the rest.
__device__ __forceinline__ void pack_six_bits(const uint32_t v[8], int at, uint32_t w[3]) {
    const uint32_t last = v[6] | v[7] << 6;
    for (int i = 0; i < 3; i++) w[i] |= (v[2 * i] | v[2 * i + 1] << 6 | (last >> (4 * i) & 15) << 12) << at;
}

// Numbers 6 and 7 of both halves, as words have numbers 2 i and 2 i + 1.
__device__ __forceinline__ uint32_t last_six_bits(uint32_t a, uint32_t b, uint32_t c) {
    return and_or(c >> 4, 0x0f000f00, and_or(b >> 8, 0x00f000f0, a >> 12 & 0x000f000f));
}

// Number U of the low and of the high halves, less `offset`.
template <int U>
__device__ __forceinline__ half2 six_bits(uint32_t a, uint32_t b, uint32_t c, float offset = 0.f) {
    uint32_t w = (U < 2 ? a : U < 4 ? b : c) >> (U % 2 * 6);
    if (U == 6) w = (a >> 12 & 0x000f000f) | (b >> 8 & 0x00300030);
    if (U == 7) w = (b >> 14 & 0x00030003) | (c >> 10 & 0x003c003c);
    return small_ints(w, 0x003f003f, offset);
}

// Word I of four.
template <int I>
__device__ __forceinline__ uint32_t word(uint4 v) {
    return I == 0 ? v.x : I == 1 ? v.y : I == 2 ? v.z : v.w;
}

// Half H (0 low, 1 high) of a word with zero above it: (d, 0) where a word holds the d
// of rows r and r + 8.
template <int H>
__device__ __forceinline__ half2 half_of(uint32_t w) {
    return as_half2(H ? w >> 16 : w & 0xffff);
}

// Element i of an array that is read once.
template <class V>
__device__ __forceinline__ V stream(const uint8_t* base, int i) {
    return __ldcs((const V*)base + i);
}

// The same, zeros without a read where there is nothing.
template <class V>
__device__ __forceinline__ V stream_if(bool there, const uint8_t* base, int i) {
    V v{};
    if (there) v = stream<V>(base, i);
    return v;
}

// bits(0) | ... | bits(7)
template <class F>
__device__ __forceinline__ uint32_t or_of_8(F bits) {
    uint32_t w = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) w |= bits(i);
    return w;
}

// The 16 bits `offset` bytes into the blocks of rows r (low) and r + 8 (high).
__device__ __forceinline__ uint32_t halves_of_rows(const uint8_t* src, size_t row_bytes, int n_rows,
                                                   int r, int offset) {
    uint32_t w = 0;
    for (int h = 0; h < 2; h++) {
        const uint8_t* p = src + (r + 8 * h) * row_bytes + offset;
        if (r + 8 * h < n_rows) w |= (uint32_t)(p[0] | p[1] << 8) << (16 * h);
    }
    return w;
}

// (d, m) of a type as halves. Both are rounded once at most, so w computed in half is
// within about 2^-10 of the largest value of its block.
template <class T, int U, int H>
__device__ __forceinline__ half2 scale_half_of(const typename T::Step& st) {
    if constexpr (T::HAS_SCALE_HALF) {
        return T::template scale_half<U, H>(st);
    } else {
        const float2 dm = T::template scale<U, H>(st);
        return __floats2half2_rn(dm.x, dm.y);
    }
}

// Two values as halves, infinite and overlarge ones as +-65504 (which as infinities
// would make NaN of zero activations). What half has no room for below 6e-8 is dropped:
// against weights of ordinary size it is less than the rounding of the others.
__device__ __forceinline__ half2 saturated_half2(float a, float b) {
    const half2 most = __float2half2_rn(65504.f);
    return __hmax2_nan(__hmin2_nan(__floats2half2_rn(a, b), most), __hneg2(most));
}

// `rearrange` of plain values of BYTES bytes: for rows r, then r + 8, each lane's eight
// values in pieces of 16 bytes, the same piece of all lanes side by side.
template <int BYTES>
__device__ __forceinline__ void rearrange_plain(const uint8_t* src, size_t row_bytes, int n_rows,
                                                int n_values, uint8_t* dst, int lane) {
    constexpr int PIECE = 16 / BYTES;
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h;
        for (int i = 0; i < 8; i++) {
            const int value = lane % 4 * 8 + i, piece = h * (8 / PIECE) + i / PIECE;
            const bool there = row < n_rows && value < n_values;
            uint8_t* out = dst + (piece * 32 + lane) * 16 + i % PIECE * BYTES;
            for (int b = 0; b < BYTES; b++) out[b] = there ? src[row * row_bytes + value * BYTES + b] : 0;
        }
    }
}

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
//   UNITS            units of 32 values that one `load` brings
//   struct Step      registers of a lane for UNITS units
//   rearrange        GGUF blocks of 16 rows -> one group (max(LEN, 32) values of k)
//   load             step s of a row tile into registers; units at or beyond n_units
//                    are not touched and decode to anything finite
//   codes<U, H>      the 8 values of row r (H = 0) or r + 8 (H = 1) in unit U of the
//                    step, as exact small numbers, pairs in k order
//   scale<U, H>      (d, m) with w = code * d + m
//
// all `static __device__ __forceinline__`; U and H are compile-time constants.
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

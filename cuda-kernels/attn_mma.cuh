// Instructions that attention's kernels are made of: tensor core products, matrix
// loads from shared memory. Lane l of a warp is g = l / 4,
// c = l % 4 throughout.
#pragma once
#include "async_copy.cuh"
#include "math.cuh"

// acc[16, 8] += a[16 rows, 16] * b[16, 8 columns], f16 in, f32 sums.
//   a     x: row g, k = 2c, 2c + 1      y: row g + 8      z, w: the same at k + 8
//   b     b0: column g, k = 2c, 2c + 1  b1: k + 8
//   acc   row g, columns 2c, 2c + 1, then row g + 8
__device__ __forceinline__ void mma(float (&acc)[4], uint4 a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Low halves of two words side by side; high halves.
__device__ __forceinline__ uint32_t lows(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32_t highs(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

// Two floats as a word of two halves.
__device__ __forceinline__ uint32_t pack_half2(float low, float high) {
    const half2 h = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &h, 4);
    return word;
}

__device__ __forceinline__ float2 unpack_half2(uint32_t word) {
    half2 h;
    memcpy(&h, &word, 4);
    return __half22float2(h);
}

// Four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8
// (16 bytes, aligned) and gets word c of row g of each.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const half* row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// The same, transposed: the lane gets rows 2c, 2c + 1 of column g.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const half* row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ char* dynamic_shared() {
    extern __shared__ uint4 dynamic_shared_memory[];
    return (char*)dynamic_shared_memory;
}

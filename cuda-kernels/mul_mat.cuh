// mul_mat: products of quantized weights with many tokens, on tensor cores.
//
//   y[m, n] = W[k, m] * x[k, n] (+ b)                       many tokens
//   y[m, u, t] = W[ids[u, t]][k, m] * x[k, u | 0, t]         experts: see mul_mat_id
//
//   W  weights in unit order (quant/unit.cuh); each warp unpacks one row tile from
//      global memory straight into fragments, once for the block's 64 columns
//   x  PACK_F16 form: f16(x / 16), rows of k rounded up to 32, through shared memory
//   b  f32 [m] or [m, n] or absent        y  f32, fully overwritten
//   f32 accumulators; grid = (ceil(m / 128), ceil(n / 64)) with blocks of 8 warps.
#pragma once
#include "mma.cuh"

constexpr int MM_WARPS = 8, MM_THREADS = MM_WARPS * WARP;
constexpr int MM_ROWS = MM_WARPS * TILE_ROWS, MM_COLUMNS = 64;
// Shared memory holds STAGES pieces of x, each 64 values of k for all columns.
constexpr int STAGES = 4, STAGE_K = 2 * UNIT, STAGE_BYTES = MM_COLUMNS * STAGE_K * 2;
constexpr int CHUNKS = STAGE_K * 2 / 16;  // 16-byte chunks of a column in a stage

__device__ __forceinline__ void copy_16(void* shared, const void* global, bool there) {
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    // The size 0 writes zeros.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(there ? 16 : 0));
}

// Place of chunk `chunk` of column `col`: odd columns swap halves, so that the eight
// lanes that read together touch all banks once.
__device__ __forceinline__ int chunk_at(int col, int chunk) {
    return (col * CHUNKS + (chunk ^ ((col & 1) << 2))) * 16;
}

// The product of one block. `x_row(col)` gives the packed row of a column (any valid
// row for dead ones), `n_cols` its live columns.
template <class T, class Row>
__device__ __forceinline__ void block_columns(const uint8_t* tile, bool has_tile, int n_units, int n_cols,
                                              char* shared, Row&& x_row, float acc[MM_COLUMNS / 8][4]) {
    const int lane = threadIdx.x % WARP, r = lane / 4, c = lane % 4;
    const int n_steps = (n_units + T::UNITS - 1) / T::UNITS;
    const int n_stages = n_steps * (T::UNITS / 2);
    // This thread copies chunk `part` of columns `column` and `column` + 32.
    const int part = threadIdx.x % CHUNKS, column = threadIdx.x / CHUNKS;
    const half* from[2] = {x_row(column) + part * 8, x_row(column + 32) + part * 8};
    auto fetch = [&](int stage) {
        if (stage < n_stages) {
            const bool there = stage * STAGE_K + part * 8 < n_units * UNIT;
            char* to = shared + stage % STAGES * STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < 2; i++)
                copy_16(to + chunk_at(column + 32 * i, part), from[i] + (there ? stage * STAGE_K : 0), there);
        }
        asm volatile("cp.async.commit_group;");
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(s);

    typename T::Step cur, next;
    if (has_tile) T::load(cur, tile, 0, n_units, lane);
    for (int step = 0; step < n_steps; step++) {
        if (has_tile && step + 1 < n_steps) T::load(next, tile, step + 1, n_units, lane);
        each<T::UNITS / 2>([&](auto pair) {
            constexpr int P = decltype(pair)::value;
            const int stage = step * (T::UNITS / 2) + P;
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
            __syncthreads();  // the stage has arrived, and the one before it was read by all
            fetch(stage + STAGES - 1);
            if (!has_tile) return;
            const char* xs = shared + stage % STAGES * STAGE_BYTES;
            each<2>([&](auto unit) {
                constexpr int U = decltype(unit)::value;
                uint32_t a[2][4];
                weights<T, 2 * P + U>(cur, a);
#pragma unroll
                for (int j = 0; j < MM_COLUMNS / 8; j++) {
                    if (j * 8 >= n_cols) break;
                    const uint4 b = *(const uint4*)(xs + chunk_at(8 * j + r, U * 4 + c));
                    mma(acc[j], a[0], b.x, b.y);
                    mma(acc[j], a[1], b.z, b.w);
                }
            });
        });
        cur = next;
    }
    asm volatile("cp.async.wait_group 0;");
}

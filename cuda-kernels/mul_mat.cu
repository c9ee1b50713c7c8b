// The entries mul_mat_<type>(w, x packed, b, y), see mul_mat.cuh, and pack_f16.
#include "mul_mat.cuh"
#include "quant_types.cuh"

template <class T>
__device__ __forceinline__ void mul_mat(const View& w, const View& x, const View& b, const View& y, char* shared) {
    const int first = blockIdx.y * MM_COLUMNS, n = dim(x, 1), n_cols = min(n - first, MM_COLUMNS);
    if (n_cols <= 0) return;
    const int lane = threadIdx.x % WARP, r = lane / 4, c = lane % 4;
    const int n_units = (w.ne[0] + UNIT - 1) / UNIT, m0 = (blockIdx.x * MM_WARPS + threadIdx.x / WARP) * TILE_ROWS;
    const uint8_t* tile = (const uint8_t*)w.data + m0 / TILE_ROWS * row_tile_bytes<T>(n_units);
    float acc[MM_COLUMNS / 8][4] = {};
    block_columns<T>(tile, m0 < w.ne[1], n_units, n_cols, shared,
                     [&](int col) { return row_of<half>(x, min(first + col, n - 1)); }, acc);
#pragma unroll
    for (int j = 0; j < MM_COLUMNS / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = m0 + r + i / 2 * 8, col = 8 * j + 2 * c + i % 2;
            if (row >= w.ne[1] || col >= n_cols) continue;
            float out = acc[j][i] * ACT_UNSCALE;
            if (b.data) out += row_of<float>(b, b.ne[1] == 1 ? 0 : first + col)[row];
            row_of<float>(y, first + col)[row] = out;
        }
    }
}

#define ENTRY(T)                                                                      \
    extern "C" __global__ void __launch_bounds__(MM_THREADS, 2)                       \
        mul_mat_##T(const __grid_constant__ View w, const __grid_constant__ View x,   \
                    const __grid_constant__ View b, const __grid_constant__ View y) { \
        start();                                                                      \
        __shared__ __align__(128) char shared[STAGES * STAGE_BYTES];                  \
        mul_mat<T>(w, x, b, y, shared);                                               \
    }
FOR_EACH_F16_TYPE(ENTRY)

// pack_f16: y[k32, r] = f16(x[k, r] / 16), zeros for k <= i < k32.
//   grid = (rows); blocks of 256 threads, each row in one block
extern "C" __global__ void __launch_bounds__(256)
    pack_f16(const __grid_constant__ View y, const __grid_constant__ View x) {
    start();
    const RowIndex at = row_index(x, blockIdx.x);
    if (!is_live(x, at)) return;
    const float* from = row_of<float>(x, at.i1, at.i2, at.i3);
    half* to = row_of<half>(y, at.i1, at.i2, at.i3);
    const int k = x.ne[0];
    const bool wide = ((uintptr_t)from & 15) == 0;
    for (int i = threadIdx.x * 4; i < y.ne[0]; i += 4 * blockDim.x) {
        float4 v;
        if (wide && i + 4 <= k) {
            v = *(const float4*)(from + i);
        } else {
            v.x = i < k ? from[i] : 0.f;
            v.y = i + 1 < k ? from[i + 1] : 0.f;
            v.z = i + 2 < k ? from[i + 2] : 0.f;
            v.w = i + 3 < k ? from[i + 3] : 0.f;
        }
        *(uint2*)(to + i) = make_uint2(to_act2(v.x, v.y), to_act2(v.z, v.w));
    }
}

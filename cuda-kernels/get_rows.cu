// The entries get_rows_<type>(dst, table, ids): dst[k, n] = rows ids[n] of table, in f32.
//
//   table  weights [k, rows] in the order of quant/unit.cuh
//   ids    i32 [n]; an id outside the table gives a row of zeros
//   dst    f32, live rows fully overwritten, dead ones left alone
//
// A block of 128 threads does one row of dst, grid = (rows of dst): the four lanes that
// own a row in a warp's step are four threads here, and 32 such groups share the steps.
#include "mma.cuh"
#include "quant_types.cuh"

constexpr int GET_ROWS_THREADS = 128;

template <class T, int H>
__device__ __forceinline__ void decode_row(const uint8_t* tile, int r, int k, float* out) {
    const int n_units = (k + UNIT - 1) / UNIT, n_steps = (n_units + T::UNITS - 1) / T::UNITS;
    const int c = threadIdx.x % 4;
    for (int s = threadIdx.x / 4; s < n_steps; s += GET_ROWS_THREADS / 4) {
        typename T::Step st;
        T::load(st, tile, s, n_units, 4 * r + c);
        each<T::UNITS>([&](auto unit) {
            constexpr int U = decltype(unit)::value;
            float w[8];
            weights_f32<T, U, H>(st, w);
            const int first = (s * T::UNITS + U) * UNIT + 8 * c;
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (first + i < k) out[first + i] = w[i];
        });
    }
}

template <class T>
__device__ __forceinline__ void get_row(const View& dst, const View& table, const View& ids) {
    const RowIndex at = row_index(dst, blockIdx.x);
    if (!is_live(dst, at)) return;
    float* out = row_of<float>(dst, at.i1, at.i2, at.i3);
    const int id = ((const int*)ids.data)[at.i1], k = dst.ne[0];
    if (id < 0 || id >= table.ne[1]) {
        for (int i = threadIdx.x; i < k; i += GET_ROWS_THREADS) out[i] = 0.f;
        return;
    }
    const size_t tile_bytes = row_tile_bytes<T>((k + UNIT - 1) / UNIT);
    const uint8_t* tile = (const uint8_t*)table.data + id / TILE_ROWS * tile_bytes;
    if (id % TILE_ROWS < 8)
        decode_row<T, 0>(tile, id % 8, k, out);
    else
        decode_row<T, 1>(tile, id % 8, k, out);
}

#define ENTRY(T)                                                                           \
    extern "C" __global__ void __launch_bounds__(GET_ROWS_THREADS)                         \
        get_rows_##T(const __grid_constant__ View dst, const __grid_constant__ View table, \
                     const __grid_constant__ View ids) {                                   \
        start();                                                                           \
        get_row<T>(dst, table, ids);                                                       \
    }
FOR_EACH_TYPE(ENTRY)

// The entries rearrange_<type>(src, dst, k, n_rows): GGUF rows to the order of
// quant/unit.cuh.
//
//   src  n_rows rows of k values, one after the other, as in the file
//   dst  the ceil(n_rows / 16) row tiles of these rows, fully overwritten
//   k    a whole number of blocks
//
// A warp does one group: 16 rows x max(LEN, 32) values of k. Blocks of 128 threads, grid =
// ceil(groups / 4).
#include "quant_types.cuh"

constexpr int REARRANGE_THREADS = 128;

template <class T>
__device__ __forceinline__ void rearrange(const uint8_t* src, uint8_t* dst, int k, long long n_rows) {
    constexpr int WIDTH = T::LEN > UNIT ? T::LEN : UNIT;
    const int n_groups = (k + WIDTH - 1) / WIDTH, lane = threadIdx.x % WARP;
    const long long n_tiles = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    const long long at = ((long long)blockIdx.x * REARRANGE_THREADS + threadIdx.x) / WARP;
    if (at >= n_tiles * n_groups) return;
    const long long row = at / n_groups * TILE_ROWS;
    const int group = (int)(at % n_groups), rows = (int)min(n_rows - row, (long long)TILE_ROWS);
    const size_t row_bytes = (size_t)k / T::LEN * T::BYTES;
    T::rearrange(src + row * row_bytes + (size_t)group * (WIDTH / T::LEN) * T::BYTES, row_bytes, rows,
                 min(k - group * WIDTH, WIDTH), dst + at * T::GROUP, lane);
}

#define ENTRY(T)                                                                   \
    extern "C" __global__ void __launch_bounds__(REARRANGE_THREADS)                \
        rearrange_##T(const uint8_t* src, uint8_t* dst, int k, long long n_rows) { \
        rearrange<T>(src, dst, k, n_rows);                                         \
    }
FOR_EACH_TYPE(ENTRY)

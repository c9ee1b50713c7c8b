// mul_mat_vec_exact_<type>: the f32 form of mul_mat_vec.cuh: weights as dequantized, x as it
// is. For F32 weights (expert routers), `--exact`, and to hold the f16 forms against.
#include "mul_mat_vec.cuh"
#include "quant_types.cuh"

// Values of x kept at once, over all columns: four steps of 256 for eight columns.
constexpr int STAGED = 8192;

template <class T>
__device__ __forceinline__ void block_product(const VecJob& job, int block, float* xs, float* sums) {
    __shared__ float factors[COLUMNS];
    constexpr int STEP = T::UNITS * UNIT;
    const int k = job.w.ne[0];
    const int n_units = (k + UNIT - 1) / UNIT, n_steps = (n_units + T::UNITS - 1) / T::UNITS;
    const size_t tile_bytes = row_tile_bytes<T>(n_units);
    let_next_start();
    if (job.ids.data) wait_for_inputs();
    const Columns at(job, tile_bytes);
    if (at.n == 0) return wait_for_inputs();
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r = lane / 4, c = lane % 4;
    const int split = job.split, part = warp % split;
    const Outputs outputs(job, block);
    const int tile = outputs.tile0 + warp / split;
    const bool has_tile = tile * TILE_ROWS < job.w.ne[1];
    const int chunk = min(STAGED / at.n / STEP / split * split, n_steps), stride = chunk * STEP;

    float acc[2][2][COLUMNS] = {};
    float b = 0.f;
    for (int first = 0; first < n_steps; first += chunk) {
        const int left = min(chunk, n_steps - first);
        const int count = has_tile && part < left ? (left - part + split - 1) / split : 0;
        typename T::Step cur;
        auto load = [&](typename T::Step& st, int matrix, int i) {
            const uint8_t* w = (matrix ? at.w2 : at.w) + tile * tile_bytes;
            T::load(st, w, first + part + i * split, n_units, lane);
        };
        if (count > 0) load(cur, 0, 0);
        if (first > 0) {
            __syncthreads();
        } else {
            wait_for_inputs();
            norm_factors(job, at, factors);
        }
        for (int col = 0; col < at.n; col++) {
            const float* x = at.x(job, col) + first * STEP;
            float* to = xs + col * stride;
            const int n_left = k - first * STEP;
            const float* norm = job.norm.data ? (const float*)job.norm.data + first * STEP : nullptr;
#pragma unroll 8
            for (int i = threadIdx.x; i < left * STEP; i += VEC_THREADS) {
                const float v = i < n_left ? x[i] : 0.f;
                to[i] = norm && i < n_left ? v * (factors[col] * norm[i]) : v;
            }
        }
        __syncthreads();
        if (first == 0) b = outputs.addend(job, at, threadIdx.x);
        walk<T>(count, at.w2, cur, load, [&](auto matrix, int i, const typename T::Step& st) {
            constexpr int M = decltype(matrix)::value;
            const float* x = xs + (part + i * split) * STEP + 8 * c;
            each<T::UNITS>([&](auto unit) {
                constexpr int U = decltype(unit)::value;
                float w[2][8];
                weights_f32<T, U, 0>(st, w[0]);
                weights_f32<T, U, 1>(st, w[1]);
#pragma unroll
                for (int col = 0; col < COLUMNS; col++) {
                    if (col >= at.n) break;
                    float v[8];
                    *(float4*)v = *(const float4*)(x + col * stride + U * UNIT);
                    *(float4*)(v + 4) = *(const float4*)(x + col * stride + U * UNIT + 4);
#pragma unroll
                    for (int e = 0; e < 8; e++) {
                        acc[M][0][col] += w[0][e] * v[e];
                        acc[M][1][col] += w[1][e] * v[e];
                    }
                }
            });
        });
    }
#pragma unroll
    for (int i = 0; i < 2 * 2 * COLUMNS; i++) {
        const int m = i / (2 * COLUMNS), h = i / COLUMNS % 2, col = i % COLUMNS;
        float sum = acc[m][h][col];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (c == 0) sums[((m * VEC_WARPS + warp) * TILE_ROWS + r + 8 * h) * COLUMNS + col] = sum;
    }
    __syncthreads();
    finish(job, at, outputs, sums, b, 1.f);
}

#define ENTRY(T)                                                           \
    extern "C" __global__ void __launch_bounds__(VEC_THREADS)              \
        mul_mat_vec_exact_##T(const __grid_constant__ Jobs<VecJob> jobs) { \
        __shared__ __align__(16) float xs[STAGED];                         \
        __shared__ float sums[2 * VEC_WARPS * TILE_ROWS * COLUMNS];        \
        int block;                                                         \
        const VecJob& job = jobs.job[my_job(jobs, block)];                 \
        block_product<T>(job, block, xs, sums);                            \
    }
FOR_EACH_TYPE(ENTRY)

// mul_mat_vec_<type>: the f16 form of mul_mat_vec.cuh, on tensor cores (Q4_K and Q6_K have
// one of their own, mul_mat_vec_int.cu).
//
// 1 to 8 columns cost nearly the same: weights become f16 fragments in registers, the
// columns are the eight of an m16n8k16 product. x is put into shared memory as
// f16(x / 16), in chunks where all of it does not fit.
#include "mul_mat_vec.cuh"
#include "quant_types.cuh"

// Values of x kept at once, over all columns; with `sums` below 48 KiB of shared memory.
constexpr int STAGED = 19968;
// Row padding that puts the 16-byte reads of neighbouring columns on different banks.
constexpr int PAD = 32;

// x[first .. first + count) of every column, normed, to shared memory, zeros beyond k.
// Several loads are under way at once: with one at a time their latency would add up.
__device__ __forceinline__ void stage(const VecJob& job, const Columns& at, const float* factors, half* xs,
                                      int stride, int first, int count) {
    constexpr int AHEAD = 3;  // as the registers allow
    const int k = job.x.ne[0];
    const float* norm = (const float*)job.norm.data;
    for (int col = 0; col < at.n; col++) {
        const float* x = at.x(job, col) + first;
        const float* w = norm ? norm + first : x;
        const float factor = norm ? factors[col] : 1.f;
        half* to = xs + col * stride;
        if ((((uintptr_t)x | (uintptr_t)w) & 15) == 0 && first + count <= k) {
            for (int i0 = threadIdx.x * 4; i0 < count; i0 += VEC_THREADS * 4 * AHEAD) {
                float4 v[AHEAD], g[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    const int i = i0 + j * VEC_THREADS * 4;
                    if (i >= count) continue;
                    v[j] = *(const float4*)(x + i);
                    if (norm) g[j] = *(const float4*)(w + i);
                }
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    const int i = i0 + j * VEC_THREADS * 4;
                    if (i >= count) continue;
                    if (norm) {
                        v[j].x *= factor * g[j].x, v[j].y *= factor * g[j].y;
                        v[j].z *= factor * g[j].z, v[j].w *= factor * g[j].w;
                    }
                    *(uint2*)(to + i) = make_uint2(to_act2(v[j].x, v[j].y), to_act2(v[j].z, v[j].w));
                }
            }
        } else {
            for (int i = threadIdx.x; i < count; i += VEC_THREADS) {
                float v = first + i < k ? x[i] : 0.f;
                if (norm && first + i < k) v *= factor * w[i];
                to[i] = to_act(v);
            }
        }
    }
}

template <class T>
__device__ __forceinline__ void block_product(const VecJob& job, int block, half* xs, float* sums) {
    __shared__ float factors[COLUMNS];
    constexpr int STEP = T::UNITS * UNIT;
    const int n_units = (job.w.ne[0] + UNIT - 1) / UNIT, n_steps = (n_units + T::UNITS - 1) / T::UNITS;
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
    const int chunk = min(STAGED / at.n / STEP / split * split, n_steps), stride = chunk * STEP + PAD;

    float acc[2][2][4] = {};
    float b = 0.f;
    for (int first = 0; first < n_steps; first += chunk) {
        const int left = min(chunk, n_steps - first);
        const int count = has_tile && part < left ? (left - part + split - 1) / split : 0;
        typename T::Step cur;
        auto load = [&](typename T::Step& st, int matrix, int i) {
            const uint8_t* w = (matrix ? at.w2 : at.w) + tile * tile_bytes;
            T::load(st, w, first + part + i * split, n_units, lane);
        };
        // The first weights are under way while x is waited for and staged.
        if (count > 0) load(cur, 0, 0);
        if (first > 0) {
            __syncthreads();
        } else {
            wait_for_inputs();
            norm_factors(job, at, factors);
        }
        stage(job, at, factors, xs, stride, first * STEP, left * STEP);
        __syncthreads();
        if (first == 0) b = outputs.addend(job, at, threadIdx.x);
        walk<T>(count, at.w2, cur, load, [&](auto matrix, int i, const typename T::Step& st) {
            constexpr int M = decltype(matrix)::value;
            const half* x = xs + r * stride + (part + i * split) * STEP + 8 * c;
            each<T::UNITS>([&](auto unit) {
                constexpr int U = decltype(unit)::value;
                uint4 v = make_uint4(0, 0, 0, 0);
                if (r < at.n) v = *(const uint4*)(x + U * UNIT);
                uint32_t a[2][4];
                weights<T, U>(st, a);
                mma(acc[M][0], a[0], v.x, v.y);
                mma(acc[M][1], a[1], v.z, v.w);
            });
        });
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float* out = sums + ((m * VEC_WARPS + warp) * TILE_ROWS + r) * COLUMNS + 2 * c;
#pragma unroll
        for (int i = 0; i < 4; i++) out[i / 2 * 8 * COLUMNS + i % 2] = acc[m][0][i] + acc[m][1][i];
    }
    __syncthreads();
    finish(job, at, outputs, sums, b, ACT_UNSCALE);
}

#define ENTRY(T)                                                     \
    extern "C" __global__ void __launch_bounds__(VEC_THREADS, 2)     \
        mul_mat_vec_##T(const __grid_constant__ Jobs<VecJob> jobs) { \
        __shared__ __align__(16) half xs[STAGED + COLUMNS * PAD];    \
        __shared__ float sums[2 * VEC_WARPS * TILE_ROWS * COLUMNS];  \
        int block;                                                   \
        const VecJob& job = jobs.job[my_job(jobs, block)];           \
        block_product<T>(job, block, xs, sums);                      \
    }
FOR_EACH_LONE_TYPE(ENTRY)

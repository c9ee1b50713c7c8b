// mul_mat_vec_one_F32: mul_mat_vec_exact_F32 for one token, 8 warps a row tile and k <= 2,048,
// as expert routers have it, with its bits.
//
// All weights of a warp and all of x are asked for at once, and nothing is done for columns
// that are not there: a launch that waits for memory and for itself is as long as its longest
// warp has instructions.
//   grid = row tiles of all jobs, block 256
#include "mul_mat_vec.cuh"
#include "quant/f32.cuh"

constexpr int ONE_STEPS = 2;  // of a warp, at most

__device__ __forceinline__ void one_product(const VecJob& job, int block, float* xs, float* sums) {
    constexpr int STEP = F32::UNITS * UNIT, MOST = VEC_WARPS * ONE_STEPS * STEP / VEC_THREADS;
    const int k = job.w.ne[0], n_units = (k + UNIT - 1) / UNIT, n_steps = (n_units + F32::UNITS - 1) / F32::UNITS;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r = lane / 4, c = lane % 4;
    let_next_start();
    F32::Step st[ONE_STEPS];
    const uint8_t* tile = (const uint8_t*)job.w.data + block * row_tile_bytes<F32>(n_units);
#pragma unroll
    for (int i = 0; i < ONE_STEPS; i++)
        if (warp + i * VEC_WARPS < n_steps) F32::load(st[i], tile, warp + i * VEC_WARPS, n_units, lane);
    const float* norm = (const float*)job.norm.data;
    const bool live = dim(job.x, 1) > 0;
    wait_for_inputs();
    if (!live) return;
    float v[MOST], w[MOST], sum = 0.f;
#pragma unroll
    for (int j = 0; j < MOST; j++) {
        const int i = threadIdx.x + j * VEC_THREADS;
        v[j] = i < k ? ((const float*)job.x.data)[i] : 0.f;
        w[j] = norm && i < k ? norm[i] : 1.f;
    }
    if (norm) {
#pragma unroll
        for (int j = 0; j < MOST; j++) sum += v[j] * v[j];
        const float factor = 1.f / sqrtf(block_sum(sum) / k + job.eps);
#pragma unroll
        for (int j = 0; j < MOST; j++) v[j] *= factor * w[j];
    }
#pragma unroll
    for (int j = 0; j < MOST; j++) xs[threadIdx.x + j * VEC_THREADS] = v[j];
    __syncthreads();
    float acc[2] = {};
#pragma unroll
    for (int i = 0; i < ONE_STEPS; i++) {
        if (warp + i * VEC_WARPS >= n_steps) break;
        const float* x = xs + (warp + i * VEC_WARPS) * STEP + 8 * c;
        each<F32::UNITS>([&](auto unit) {
            constexpr int U = decltype(unit)::value;
            float rows[2][8], at[8];
            F32::values<U, 0>(st[i], rows[0]);
            F32::values<U, 1>(st[i], rows[1]);
            *(float4*)at = *(const float4*)(x + U * UNIT);
            *(float4*)(at + 4) = *(const float4*)(x + U * UNIT + 4);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                acc[0] += rows[0][e] * at[e];
                acc[1] += rows[1][e] * at[e];
            }
        });
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float s = acc[h] + __shfl_xor_sync(ALL_LANES, acc[h], 1);
        s += __shfl_xor_sync(ALL_LANES, s, 2);
        if (c == 0) sums[warp * TILE_ROWS + r + 8 * h] = s;
    }
    __syncthreads();
    const int row = block * TILE_ROWS + threadIdx.x;
    if (threadIdx.x >= TILE_ROWS || row >= job.w.ne[1]) return;
    float total = 0.f;
#pragma unroll
    for (int s = 0; s < VEC_WARPS; s++) total += sums[s * TILE_ROWS + threadIdx.x];
    const float b = job.b.data ? ((const float*)job.b.data)[row] : 0.f;
    ((float*)job.y.data)[row] = total + b;
}

extern "C" __global__ void __launch_bounds__(VEC_THREADS)
    mul_mat_vec_one_F32(const __grid_constant__ Jobs<VecJob> jobs) {
    __shared__ __align__(16) float xs[VEC_WARPS * ONE_STEPS * F32::UNITS * UNIT];
    __shared__ float sums[VEC_WARPS * TILE_ROWS];
    int block;
    const VecJob& job = jobs.job[my_job(jobs, block)];
    one_product(job, block, xs, sums);
}

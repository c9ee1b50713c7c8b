// Products of weights with few tokens, 8 columns a block: what the f16 and the f32 form
// share.
//
//   y[m, n] = W[k, m] * x[k, n] (+ b)          n <= 8 columns a block
//   y[m, n] = act(W * x) * (W2 * x)            with a second matrix
//   y[m, u, t] = W[ids[u, t]][k, m] * x[k, u | 0, t]   with expert ids: one column a block
//
//   W, W2  weights in unit order (quant/unit.cuh)     x  f32, k contiguous
//   norm   f32 [k]: x is first divided by sqrt(mean(x^2) + eps) and multiplied by norm
//   b      f32 [m] or [m, n]                          y  f32, fully overwritten
//   b may be added to each form. f32 accumulators. A block has 8 warps; `split` warps
//   share a row tile's k and 8 / split row tiles are done at once. Weights come a step
//   (UNITS units of k) at a time, x a chunk (as many steps as shared memory holds).
//   grid = (row blocks of all jobs, groups of 8 columns or (slot, token) pairs of
//   experts, as many again where there are more than y may hold)
#pragma once
#include "jobs.cuh"
#include "math.cuh"
#include "mma.cuh"

constexpr int VEC_WARPS = 8, VEC_THREADS = VEC_WARPS * WARP, COLUMNS = 8;

struct VecJob {
    View w, w2, x, norm, ids, b, y;
    int glu;    // GluKind, read when w2 is there
    int split;  // warps that share a row tile
    float eps;
};

// The columns of one block: where its x and y lie, and which weights it reads.
struct Columns {
    const uint8_t *w, *w2;
    int n, t0, u;
    bool expert;

    // Which columns block (y, z) has; n is 0 when all of them are dead.
    __device__ __forceinline__ Columns(const VecJob& job, size_t tile_bytes) {
        const long long group = blockIdx.y + (long long)blockIdx.z * gridDim.y;
        w = (const uint8_t*)job.w.data;
        w2 = (const uint8_t*)job.w2.data;
        expert = job.ids.data != nullptr;
        n = u = 0;
        if (!expert) {
            t0 = (int)group * COLUMNS;
            n = max(min(dim(job.x, 1) - t0, COLUMNS), 0);
            return;
        }
        const int n_used = job.y.ne[1];
        t0 = (int)(group / n_used);
        u = (int)(group % n_used);
        if (t0 >= job.ids.ne[1]) return;
        const int id = row_of<int>(job.ids, t0)[u];  // under way beside the live count
        n = t0 < dim(job.x, 2) ? 1 : 0;
        // Ids come from TOP_K and are in range; garbage would read foreign memory.
        const int e = min(max(id, 0), job.w.ne[2] - 1);
        const size_t matrix = (job.w.ne[1] + TILE_ROWS - 1) / TILE_ROWS * tile_bytes;
        w += e * matrix;
        if (w2) w2 += e * matrix;
    }

    // Column i of x.
    __device__ __forceinline__ const float* x(const VecJob& job, int i) const {
        return expert ? row_of<float>(job.x, job.x.ne[1] == 1 ? 0 : u, t0) : row_of<float>(job.x, t0 + i);
    }

    __device__ __forceinline__ float* y(const VecJob& job, int i) const {
        return expert ? row_of<float>(job.y, u, t0) : row_of<float>(job.y, t0 + i);
    }
};

// Factors of the columns: 1, or those of their RMS norms. Ends with a barrier.
__device__ __forceinline__ void norm_factors(const VecJob& job, const Columns& at, float* factors) {
    if (!job.norm.data) return;
    constexpr int AHEAD = 4;
    const int k = job.x.ne[0];
    for (int col = 0; col < at.n; col++) {
        const float* x = at.x(job, col);
        float sum = 0.f;
        for (int i0 = threadIdx.x; i0 < k; i0 += VEC_THREADS * 4 * AHEAD) {
            float v[4 * AHEAD];
#pragma unroll
            for (int j = 0; j < 4 * AHEAD; j++) v[j] = i0 + j * VEC_THREADS < k ? x[i0 + j * VEC_THREADS] : 0.f;
#pragma unroll
            for (int j = 0; j < 4 * AHEAD; j++) sum += v[j] * v[j];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) factors[col] = 1.f / sqrtf(sum / k + job.eps);
    }
    __syncthreads();
}

// Runs `body(matrix, step in the chunk, registers)` over this warp's steps of a chunk,
// first those of W, then those of W2, loading one step ahead. `cur` holds the first one.
template <class T, class Load, class Body>
__device__ __forceinline__ void walk(int count, bool two, typename T::Step& cur, Load&& load, Body&& body) {
    typename T::Step next;
    each<2>([&](auto matrix) {
        constexpr int M = decltype(matrix)::value;
        if (M == 1 && !two) return;
        for (int i = 0; i < count; i++) {
            if (i + 1 < count)
                load(next, M, i + 1);
            else if (M == 0 && two)
                load(next, 1, 0);
            body(matrix, i, cur);
            cur = next;
        }
    });
}

// The outputs of a block, one after the other; thread t has numbers t, t + VEC_THREADS..
struct Outputs {
    int tiles, tile0;

    __device__ __forceinline__ Outputs(const VecJob& job, int block)
        : tiles(VEC_WARPS / job.split), tile0(block * (VEC_WARPS / job.split)) {}
    __device__ __forceinline__ int count(const Columns& at) const { return tiles * TILE_ROWS * at.n; }
    __device__ __forceinline__ int row(int i) const { return i % TILE_ROWS; }
    __device__ __forceinline__ int tile(int i) const { return i / TILE_ROWS % tiles; }
    __device__ __forceinline__ int column(int i) const { return i / (TILE_ROWS * tiles); }
    __device__ __forceinline__ int m(int i) const { return (tile0 + tile(i)) * TILE_ROWS + row(i); }

    // What is added to output i, if anything.
    __device__ __forceinline__ float addend(const VecJob& job, const Columns& at, int i) const {
        if (!job.b.data || i >= count(at) || m(i) >= job.w.ne[1]) return 0.f;
        return row_of<float>(job.b, job.b.ne[1] == 1 ? 0 : at.t0 + column(i))[m(i)];
    }
};

// Adds up the parts of all warps and writes y. `sums[mat][warp][row][column]`; `b` is
// the addend of this thread's first output, which was asked for early.
__device__ __forceinline__ void finish(const VecJob& job, const Columns& at, const Outputs& outputs,
                                       const float* sums, float b, float unscale) {
    const int split = job.split;
    for (int i = threadIdx.x; i < outputs.count(at); i += VEC_THREADS) {
        const int m = outputs.m(i);
        if (i != threadIdx.x) b = outputs.addend(job, at, i);
        if (m >= job.w.ne[1]) continue;
        float v[2];
        for (int mat = 0; mat < (at.w2 ? 2 : 1); mat++) {
            const int warp = mat * VEC_WARPS + outputs.tile(i) * split;
            const float* part = sums + (warp * TILE_ROWS + outputs.row(i)) * COLUMNS + outputs.column(i);
            float sum = 0.f;
            for (int s = 0; s < split; s++) sum += part[s * TILE_ROWS * COLUMNS];
            v[mat] = sum * unscale;
        }
        at.y(job, outputs.column(i))[m] = (at.w2 ? gated(job.glu, v[0], v[1]) : v[0]) + b;
    }
}

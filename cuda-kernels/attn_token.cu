// attn_token_<one|few>_<head_dim>: ATTN for one token or up to 16, with the HEAD_ROWS ahead of
// it (RoPE and norm of Q and K, storing K and V) where the host took them in, split over the
// KV length.
//   operands as in attn.cuh, k and v f16, head_dim_k == head_dim_v == <head_dim>
//   k.nb[1], v.nb[1] and the data: multiples of 16 bytes; nb[1] < 2^27 bytes
//   arrived  zeros before and after, one for each row tile and KV head
//   grid = (ceil(n * group / 8) row tiles, n_head_kv, n_split), block 256
//   dynamic shared memory: `src/backend/cuda/ops/attn_token.rs` counts it
//
// A step of a short context is all latency: of memory, and of instructions that wait for each
// other, some six cycles each. So a block has many warps with little to do each (a query row,
// 16 cells), one token has code of its own, and what does not depend on the kernel before is
// done ahead of the wait: who is seen, the sines, and, when HEAD_ROWS is in here, copies of K
// and V into shared memory, since all cells but those of this step are there already; theirs
// come from the block's own work.
//
// Each warp walks its own chunks of cells with its own running softmax. Cells are the rows of
// its products, query rows the 8 columns: K times q, then V transposed times weights. The
// last block of a row tile to be done adds the splits up, in order.
#include "attn_token.cuh"

template <int HD, bool ONE>
struct Walk : Block<HD, ONE> {
    using Base = Block<HD, ONE>;
    using Shared = typename Base::Shared;
    using Base::a;
    using Base::p;
    using Base::sh;
    using Base::warp;
    using Base::lane;
    using Base::tile;
    using Base::head_kv;
    using Base::n_rows;
    using Base::n_cells;
    using Base::open;
    using Base::look;
    using Base::fetch;
    using Base::complete;
    using Base::find_turns;
    using Base::stage;
    using Base::fused;
    using Base::stride;
    using Base::n_active;
    using Base::token_of;
    using Base::head_of;

    __device__ __forceinline__ Walk(const AttnToken& p, Shared& sh, char* rest) : Base(p, sh, rest) {}

    __device__ __forceinline__ void run() {
        let_next_start();
        if (!open()) return wait_for_inputs();
        const Chunk chunk = look((blockIdx.z * WARPS + warp) * CELLS);
        if (!fused()) {
            if (chunk.first < n_cells && chunk.seen >> lane & 1) {
                const size_t cell = chunk.first + lane;
                for (int i = 0; i < HD * 2; i += 128) prefetch(a.k.data + head_kv * HD * 2 + cell * a.k.nb[1] + i);
                for (int i = 0; i < HD * 2; i += 128) prefetch(a.v.data + head_kv * HD * 2 + cell * a.v.nb[1] + i);
            }
            wait_for_inputs();
        }
#pragma unroll 1
        for (int kind = K; kind <= V; kind++) fetch(chunk, kind);
        if (fused()) {
            find_turns();
            __syncthreads();
            wait_for_inputs();
        }
        stage();
        __syncthreads();
        walk(chunk);
    }

    __device__ __forceinline__ void walk(Chunk chunk) {
        const int g = lane / 4, c = lane % 4;
        float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, out[HD / 16][4] = {};
        const float2 factors = *(const float2*)&sh.factor[2 * c];
        const float factor[2] = {factors.x, factors.y};
        const auto& cells = sh.cells[warp];
        while (chunk.first < n_cells) {
            copies_wait<1>();
            complete(chunk, K);
            float s[4];  // cell g, rows 2c, 2c + 1, then cell g + 8
            dots(s, cells.of[0]);
            const Chunk now = chunk;
            if (chunk.first + stride() < n_cells)
                chunk = look(chunk.first + stride());
            else
                chunk.first = n_cells;
            __syncwarp();
            fetch(chunk, K);
            float keep[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float& x = s[h];
                float& y = s[2 + h];
                x = now.visible[h] >> g & 1 ? finish_score(a, x * factor[h]) : -INFINITY;
                y = now.visible[h] >> (8 + g) & 1 ? finish_score(a, y * factor[h]) : -INFINITY;
                float top = fmaxf(max[h], fmaxf(x, y));
#pragma unroll
                for (int o = 4; o < WARP; o *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, o));
                const float base = finite_max(top), shifted = base - WEIGHT_SHIFT;
                keep[h] = exp2_fast(max[h] - base);
                max[h] = top;
                x = exp2_fast(x - shifted), y = exp2_fast(y - shifted);
                sum[h] = sum[h] * keep[h] + (x + y);
            }
#pragma unroll
            for (int i = 0; i < HD / 16; i++)
                out[i][0] *= keep[0], out[i][1] *= keep[1], out[i][2] *= keep[0], out[i][3] *= keep[1];
            copies_wait<1>();
            complete(now, V);
            weigh_in(out, s, cells.of[1]);
            __syncwarp();
            fetch(chunk, V);
        }
        copies_wait<0>();
        float* mine = (float*)&sh.cells[warp];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = 2 * c + h;
            float all = sum[h];
#pragma unroll
            for (int o = 4; o < WARP; o *= 2) all += __shfl_xor_sync(ALL_LANES, all, o);
            if (g == 0) sh.max[row][warp] = max[h], sh.sum[row][warp] = all;
#pragma unroll
            for (int i = 0; i < HD / 16; i++) {
                mine[row * Shared::SUM_STRIDE + 16 * i + g] = out[i][h];
                mine[row * Shared::SUM_STRIDE + 16 * i + 8 + g] = out[i][2 + h];
            }
        }
        __syncthreads();
        finish();
    }

    // K of 16 cells times q; hi and lo are summed apart, so that products run side by side.
    __device__ __forceinline__ void dots(float (&s)[4], const half (&k)[CELLS][Shared::STRIDE]) const {
        float low[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] = 0.f;
        const half* from = &k[lane / 8 % 2 * 8 + lane % 8][lane / 16 * 8];
#pragma unroll
        for (int step = 0; step < HD / 16; step++) {
            const uint4 q = sh.q[step][lane];
            uint32_t k[4];
            load_matrices(k, from + 16 * step);
            const uint4 rows = make_uint4(k[0], k[1], k[2], k[3]);
            mma(s, rows, q.x, q.y);
            mma(low, rows, q.z, q.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += low[i];
    }

    // out[column, row] += V[cell, column] * weight[cell, row] of 16 cells.
    __device__ __forceinline__ void weigh_in(float (&out)[HD / 16][4], const float (&w)[4],
                                             const half (&v)[CELLS][Shared::STRIDE]) const {
        uint32_t hi[2], lo[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t h = pack_half2(w[2 * i], w[2 * i + 1]);
            const float2 x = unpack_half2(h);
            hi[i] = transposed(h);
            lo[i] = transposed(pack_half2(w[2 * i] - x.x, w[2 * i + 1] - x.y));
        }
        const half* from = &v[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            uint32_t m[4];
            load_matrices_transposed(m, from + 16 * i);
            const uint4 columns = make_uint4(m[0], m[1], m[2], m[3]);
            mma(out[i], columns, hi[0], hi[1]);
            mma(out[i], columns, lo[0], lo[1]);
        }
    }

    // Where a row's result goes, and its share of split 0.
    __device__ __forceinline__ float* result(int row) const {
        return row_of<float>(a.dst, token_of(row)) + head_of(row) * HD;
    }
    __device__ __forceinline__ size_t share(int row) const {
        return ((size_t)token_of(row) * a.q.ne[1] + head_of(row)) * p.n_split;
    }

    // Adds the warps up, in order, and then the splits.
    __device__ __forceinline__ void finish() {
        if (lane < WARPS) {  // warp r has row r
            constexpr unsigned LANES = (1u << WARPS) - 1;
            const float max = sh.max[warp][lane];
            float top = max;
#pragma unroll
            for (int o = 1; o < WARPS; o *= 2) top = fmaxf(top, __shfl_xor_sync(LANES, top, o));
            const float weight = exp2_fast(max - finite_max(top));
            float sum = sh.sum[warp][lane] * weight;
#pragma unroll
            for (int o = 1; o < WARPS; o *= 2) sum += __shfl_xor_sync(LANES, sum, o);
            sh.weight[warp][lane] = weight;
            if (lane == 0) sh.total[warp] = make_float2(top, sum);
        }
        __syncthreads();
        const int n = n_active();
#pragma unroll 1
        for (int i = threadIdx.x; i < n_rows * HD; i += THREADS) {
            const int row = i / HD, d = i % HD;
            float x = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                x = fmaf(((const float*)&sh.cells[w])[row * Shared::SUM_STRIDE + d], sh.weight[row][w], x);
            const float2 total = sh.total[row];
            if (n == 1) {
                result(row)[d] = x * (total.y == 0.f ? 0.f : 1.f / total.y);
            } else {
                if (d == 0) p.parts[share(row) + blockIdx.z] = total;
                p.part_out[(share(row) + blockIdx.z) * HD + d] = x;
            }
        }
        if (n == 1) return;
        __threadfence();
        __syncthreads();  // also: nobody reads the warps' sums any more
        if (threadIdx.x == 0) {
            unsigned* arrived = p.arrived + blockIdx.y * gridDim.x + tile;
            sh.is_last = atomicAdd(arrived, 1) == n - 1;
            if (sh.is_last) *arrived = 0;
        }
        __syncthreads();
        if (!sh.is_last) return;
        __threadfence();
        if (warp < n_rows) combine(warp, n);
    }

    // One warp adds n <= 64 splits of a row up, whose sums pass through its cells' place.
    __device__ __forceinline__ void combine(int row, int n) const {
        constexpr int ROOM = sizeof(typename Shared::Cells) / (HD * 4), COLUMNS = (HD + WARP - 1) / WARP;
        const size_t first = share(row);
        float2 part[2];
        float top = -INFINITY, sum = 0.f, weight[2], out[COLUMNS] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int s = lane + WARP * i;
            part[i] = s < n ? __ldcg(p.parts + first + s) : make_float2(-INFINITY, 0.f);
            top = fmaxf(top, part[i].x);
        }
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[i] = exp2_fast(part[i].x - finite_max(top));
            sum += weight[i] * part[i].y;
        }
        sum = warp_sum(sum);
        float* room = (float*)&sh.cells[warp];
#pragma unroll 1
        for (int s0 = 0; s0 < n; s0 += ROOM) {
            const int count = min(ROOM, n - s0);
            const float* from = p.part_out + (first + s0) * HD;
#pragma unroll 4
            for (int i = lane; i < count * (HD / 4); i += WARP) stage_16(room + 4 * i, from + 4 * i);
            copies_commit();
            copies_wait<0>();
            __syncwarp();
#pragma unroll 2
            for (int s = 0; s < count; s++) {
                const int at = s0 + s;
                const float w = __shfl_sync(ALL_LANES, at < WARP ? weight[0] : weight[1], at % WARP);
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    if (lane + WARP * i < HD) out[i] += w * room[s * HD + lane + WARP * i];
            }
            __syncwarp();
        }
        const float scale = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (lane + WARP * i < HD) result(row)[lane + WARP * i] = out[i] * scale;
    }
};

template <int HD, bool ONE>
__device__ __forceinline__ void attn_token(const AttnToken& p) {
    extern __shared__ __align__(16) char memory[];
    Walk<HD, ONE>(p, *(TokenShared<HD>*)memory, memory + sizeof(TokenShared<HD>)).run();
}

#define ATTN_TOKEN(HD)                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)            \
        attn_token_one_##HD(const __grid_constant__ AttnToken p) {      \
        attn_token<HD, true>(p);                                        \
    }                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)            \
        attn_token_few_##HD(const __grid_constant__ AttnToken p) {      \
        attn_token<HD, false>(p);                                       \
    }

ATTN_TOKEN(64)
ATTN_TOKEN(80)
ATTN_TOKEN(96)
ATTN_TOKEN(112)
ATTN_TOKEN(128)

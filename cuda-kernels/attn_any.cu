// attn_any: ATTN for every case that the tensor core kernels do not take: f32 caches,
// K and V of different types or head dims, head dims that are no multiple of 16.
//   operands as in attn.cuh; head_dim_k >= 1, head_dim_v <= 512
//   n_split 1: writes dst; more: parts and part_out, for attn_combine
//   f32 throughout; one query row (head of a token) a block
//   grid = (n_split * n_head, n), block 128, shared f32 [head_dim_k + 4 * head_dim_v]
//
// Each warp walks its own chunks of 32 cells with its own running softmax: a lane has a
// cell's score, then columns d = lane + 32 i of the result.
#include "attn.cuh"

constexpr int MAX_COLUMNS = 512 / WARP;  // of a lane
constexpr int GGML_F16 = 1;

// Values d .. d + 3 of a row, fewer at its end; `wide`: rows are aligned to 4 values.
__device__ __forceinline__ float4 load4(const char* row, int d, int n, bool is_f16, bool wide) {
    float x[4] = {};
    if (wide && is_f16) {
        const uint2 w = __ldg((const uint2*)(row + 2 * d));
        const float2 a = unpack_half2(w.x), b = unpack_half2(w.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    if (wide) return __ldg((const float4*)(row + 4 * d));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (d + i < n) x[i] = is_f16 ? __half2float(((const half*)row)[d + i]) : ((const float*)row)[d + i];
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

// This lane's score of its cell.
__device__ __forceinline__ float dot(const Attn& a, const float* q, int head_kv, int cell) {
    const int hd = a.q.ne[0];
    const bool is_f16 = a.k.dtype == GGML_F16;
    const int value_bytes = is_f16 ? 2 : 4;
    const bool wide = hd % 4 == 0 && a.k.nb[1] % (4 * value_bytes) == 0 && (size_t)a.k.data % (4 * value_bytes) == 0;
    const char* k = a.k.data + cell * a.k.nb[1] + (size_t)head_kv * hd * value_bytes;
    float sum = 0.f;
#pragma unroll 4
    for (int d = 0; d < hd; d += 4) {
        const float4 x = load4(k, d, hd, is_f16, wide);
        sum += q[d] * x.x;
        if (d + 1 < hd) sum += q[d + 1] * x.y;
        if (d + 2 < hd) sum += q[d + 2] * x.z;
        if (d + 3 < hd) sum += q[d + 3] * x.w;
    }
    return sum;
}

// A warp's running max, sum (this lane's cells) and columns.
struct Share {
    float max = -INFINITY, sum = 0.f;
    float out[MAX_COLUMNS] = {};
};

// Takes the warp's chunks in; what no cell is seen in is skipped.
__device__ __forceinline__ void walk(const Attn& a, const float* q, int token, int head_kv, int first_chunk,
                                     int stride, int hd_v, Share& share) {
    const int lane = threadIdx.x % WARP, n_cells = live_cells(a);
    const int pos = ints(a.pos)[token], seq = ints(a.seq)[token];
    const float factor = score_factor(a, pos);
    const bool is_f16 = a.v.dtype == GGML_F16;
    const char* v = a.v.data + (size_t)head_kv * hd_v * (is_f16 ? 2 : 4);
    for (int first = first_chunk * CHUNK_CELLS; first < n_cells; first += stride * CHUNK_CELLS) {
        const int cell = first + lane;
        const bool mine =
            cell < n_cells && sees(pos, seq, ints(a.cell_pos)[cell], ints(a.cell_seq)[cell], a.window);
        uint32_t seen = __ballot_sync(ALL_LANES, mine);
        if (seen == 0) continue;
        const float score = mine ? finish_score(a, dot(a, q, head_kv, cell) * factor) : -INFINITY;
        const float top = fmaxf(share.max, warp_max(score));
        const float keep = exp2_fast(share.max - finite_max(top)), weight = exp2_fast(score - finite_max(top));
        share.max = top;
        share.sum = share.sum * keep + weight;
#pragma unroll
        for (int i = 0; i < MAX_COLUMNS; i++) share.out[i] *= keep;
        for (; seen != 0; seen &= seen - 1) {
            const int c = __ffs(seen) - 1;
            const float w = __shfl_sync(ALL_LANES, weight, c);
            const char* row = v + (first + c) * a.v.nb[1];
#pragma unroll
            for (int i = 0; i < MAX_COLUMNS; i++) {
                const int d = lane + WARP * i;
                if (d >= hd_v) continue;
                share.out[i] += w * (is_f16 ? __half2float(((const half*)row)[d]) : ((const float*)row)[d]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(ATTN_THREADS)
    attn_any(ATTN_PARAMS, int n_split, float2* parts, float* part_out) {
    start();
    __shared__ float max_of[ATTN_WARPS], sum_of[ATTN_WARPS];
    const Attn a = ATTN_STRUCT;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int n_head = a.q.ne[1], hd_k = a.q.ne[0], hd_v = a.dst.ne[0] / n_head;
    const int split = blockIdx.x % n_split, head = blockIdx.x / n_split, token = blockIdx.y;
    const int n_chunks = (live_cells(a) + CHUNK_CELLS - 1) / CHUNK_CELLS;
    if (token >= live_tokens(a) || (n_split > 1 && split * ATTN_WARPS >= n_chunks)) return;
    float* shared_q = (float*)dynamic_shared();
    float* shared_out = shared_q + hd_k;
    for (int d = threadIdx.x; d < hd_k; d += ATTN_THREADS) shared_q[d] = row_of<float>(a.q, head, token)[d];
    __syncthreads();
    Share share;
    walk(a, shared_q, token, head / group_of(a), split * ATTN_WARPS + warp, n_split * ATTN_WARPS, hd_v, share);
    const float warp_total = warp_sum(share.sum);
    if (lane == 0) max_of[warp] = share.max, sum_of[warp] = warp_total;
    __syncthreads();
    float top = -INFINITY, sum = 0.f;
    for (int w = 0; w < ATTN_WARPS; w++) top = fmaxf(top, max_of[w]);
    for (int w = 0; w < ATTN_WARPS; w++) sum += sum_of[w] * exp2_fast(max_of[w] - finite_max(top));
    const float f = exp2_fast(share.max - finite_max(top));
#pragma unroll
    for (int i = 0; i < MAX_COLUMNS; i++) {
        if (lane + WARP * i < hd_v) shared_out[warp * hd_v + lane + WARP * i] = share.out[i] * f;
    }
    __syncthreads();
    const size_t part = ((size_t)token * n_head + head) * n_split + split;
    if (n_split > 1 && threadIdx.x == 0) parts[part] = make_float2(top, sum);
    for (int d = threadIdx.x; d < hd_v; d += ATTN_THREADS) {
        float x = 0.f;
        for (int w = 0; w < ATTN_WARPS; w++) x += shared_out[w * hd_v + d];
        if (n_split == 1) {
            row_of<float>(a.dst, token)[head * hd_v + d] = sum == 0.f ? 0.f : x / sum;
        } else if (sum != 0.f) {
            part_out[part * hd_v + d] = x;
        }
    }
}

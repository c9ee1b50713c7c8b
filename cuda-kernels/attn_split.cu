// attn_split_<head_dim>: ATTN for few query rows, split over the KV length.
//   operands as in attn.cuh, k and v f16, head_dim_k == head_dim_v == <head_dim>
//   k.nb[1], v.nb[1] and the data: multiples of 16 bytes; nb[1] < 2^27 bytes
//   n_split 1: writes dst; more: parts and part_out, for attn_combine
//   f32 sums on tensor cores; 16 query rows a block, of one KV head
//   grid = (n_split * ceil(n * group / 16), n_head_kv * column blocks), block 128
//   column blocks: 2 for head_dim 256, whose sums do not fit a warp's registers (each
//   computes all scores and half of the columns), else 1
//
// Each warp walks its own chunks of cells with its own running softmax, and K and V go
// from global memory straight to registers as operands of mma, whose k order is free: a
// lane reads 16 bytes of a cell's K (8 neighbouring values), and 16 bytes of V of each
// of 4 cells, interleaved in registers. So nothing waits for another warp but the end.
#include "attn.cuh"


constexpr int ROWS = 16;

// The tokens that have a row in a block.
struct Tokens {
    int first, count;
};

template <int HD, int COLS>
struct SplitShared {
    static constexpr int SUM_STRIDE = COLS + 4;  // rows in different banks
    uint32_t words[ROWS * (HD + 4)];             // the fragments of q, later the block's sums
    float factor[ROWS];
    int pos[ROWS], seq[ROWS];  // by token
    float max[ATTN_WARPS][ROWS], sum[ATTN_WARPS][ROWS];
    float2 total[ROWS];  // max and sum of all warps
};

// A lane's K of 16 cells and values 32 u .. 32 u + 31: cells g and g + 8.
template <int HD>
__device__ __forceinline__ void load_k(uint4 (&r)[2], const char* k, uint32_t k_bytes, int u, uint32_t seen,
                                       int lane) {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int cell = 8 * j + g;
        const char* row = k + cell * k_bytes + u * 64;
        r[j] = make_uint4(0, 0, 0, 0);
        if (!(seen >> cell & 1)) continue;
        if (32 * (u + 1) <= HD) {
            r[j] = __ldg((const uint4*)row + c);
        } else {
            const uint2 x = __ldg((const uint2*)row + c);
            r[j].x = x.x, r[j].y = x.y;
        }
    }
}

// s[row, cell] of 32 cells.
template <int HD>
__device__ __forceinline__ void dots(float (&s)[4][4], const uint4* q, const char* k, uint32_t k_bytes,
                                     uint32_t seen, int lane) {
    // Loads under way: latency is what a short context costs.
    constexpr int UNITS = (HD + 31) / 32, N = 2 * UNITS, DEPTH = 8;
    uint4 ring[DEPTH][2];
#pragma unroll
    for (int i = 0; i < N + DEPTH; i++) {
        if (i >= DEPTH) {
            const int at = i - DEPTH, half_chunk = at / UNITS, u = at % UNITS;
            const uint4 x = ring[at % DEPTH][0], y = ring[at % DEPTH][1];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int step = 2 * u + h;
                if (16 * step >= HD) continue;
                const uint4 hi = q[2 * step * WARP + lane], lo = q[(2 * step + 1) * WARP + lane];
                mma(s[2 * half_chunk], hi, h ? x.z : x.x, h ? x.w : x.y);
                mma(s[2 * half_chunk + 1], hi, h ? y.z : y.x, h ? y.w : y.y);
                mma(s[2 * half_chunk], lo, h ? x.z : x.x, h ? x.w : x.y);
                mma(s[2 * half_chunk + 1], lo, h ? y.z : y.x, h ? y.w : y.y);
            }
        }
        if (i < N) {
            const int half_chunk = i / UNITS;
            load_k<HD>(ring[i % DEPTH], k + 16 * half_chunk * k_bytes, k_bytes, i % UNITS, seen >> 16 * half_chunk, lane);
        }
    }
}

// V's columns are taken in units: 64 at a time (8 a lane), then 32 and 16.
template <int COLS>
struct Units {
    static constexpr int WIDE = COLS / 64, HAS_32 = COLS % 64 / 32, COUNT = WIDE + HAS_32 + COLS % 32 / 16;
    static __device__ __forceinline__ int first(int u) {
        return u < WIDE ? 64 * u : u == WIDE && HAS_32 ? 64 * WIDE : COLS - 16;
    }
    static __device__ __forceinline__ int per_lane(int u) { return u < WIDE ? 8 : u == WIDE && HAS_32 ? 4 : 2; }
};

// A lane's V of 16 cells in unit u: cells 2c, 2c + 1, 2c + 8, 2c + 9, its columns each.
template <int COLS>
__device__ __forceinline__ void load_v(uint32_t (&r)[4][4], const char* v, uint32_t v_bytes, int u, uint32_t seen,
                                       int lane) {
    const int g = lane / 4, c = lane % 4, per_lane = Units<COLS>::per_lane(u);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int cell = 2 * c + i % 2 + i / 2 * 8;
        const char* row = v + cell * v_bytes + (Units<COLS>::first(u) + g * per_lane) * 2;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (seen >> cell & 1) {
            if (per_lane == 8) {
                x = __ldg((const uint4*)row);
            } else if (per_lane == 4) {
                const uint2 y = __ldg((const uint2*)row);
                x.x = y.x, x.y = y.y;
            } else {
                x.x = __ldg((const uint32_t*)row);
            }
        }
        r[i][0] = x.x, r[i][1] = x.y, r[i][2] = x.z, r[i][3] = x.w;
    }
}

// The `a` of mma, hi and lo, from the weights of 16 cells.
__device__ __forceinline__ void weight_fragments(uint4& hi, uint4& lo, const float (&s)[4], const float (&t)[4]) {
    const float w[4][2] = {{s[0], s[1]}, {s[2], s[3]}, {t[0], t[1]}, {t[2], t[3]}};
    uint32_t h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h[i] = pack_half2(w[i][0], w[i][1]);
        const float2 x = unpack_half2(h[i]);
        l[i] = pack_half2(w[i][0] - x.x, w[i][1] - x.y);
    }
    hi = make_uint4(h[0], h[1], h[2], h[3]);
    lo = make_uint4(l[0], l[1], l[2], l[3]);
}

// Weighs one chunk of 32 cells in. out[i] holds the columns of `Units`.
template <int HD, int COLS>
__device__ __forceinline__ void take_chunk(const Attn& a, float (&out)[COLS / 8][4], Running& run, const uint4* q,
                                           const char* k, const char* v, const float (&factor)[2], uint32_t seen,
                                           const uint32_t (&visible)[2], int lane) {
    // As many loads under way as the registers allow.
    constexpr int UNITS = Units<COLS>::COUNT, N = 2 * UNITS, DEPTH = COLS > 128 || N < 4 ? 2 : 4;
    const uint32_t k_bytes = (uint32_t)a.k.nb[1], v_bytes = (uint32_t)a.v.nb[1];
    float s[4][4] = {};
    dots<HD>(s, q, k, k_bytes, seen, lane);
    uint32_t ring[DEPTH][4][4];
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        const int half_chunk = i / UNITS;
        load_v<COLS>(ring[i], v + 16 * half_chunk * v_bytes, v_bytes, i % UNITS, seen >> 16 * half_chunk, lane);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int cell = 8 * j + lane % 4 * 2 + i % 2;
            const float x = finish_score(a, s[j][i] * factor[i / 2]);
            s[j][i] = visible[i / 2] >> cell & 1 ? x : -INFINITY;
        }
    }
    const float2 keep = weigh(run, s);
#pragma unroll
    for (int i = 0; i < COLS / 8; i++) {
        out[i][0] *= keep.x, out[i][1] *= keep.x, out[i][2] *= keep.y, out[i][3] *= keep.y;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) run.sum[0] += s[j][0] + s[j][1], run.sum[1] += s[j][2] + s[j][3];
    uint4 hi, lo;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int half_chunk = i / UNITS, u = i % UNITS, at = Units<COLS>::first(u) / 8;
        if (u == 0) weight_fragments(hi, lo, s[2 * half_chunk], s[2 * half_chunk + 1]);
        const auto& x = ring[i % DEPTH];
#pragma unroll
        for (int j = 0; j < Units<COLS>::per_lane(u); j++) {
            const int w = j / 2;
            const uint32_t b0 = j % 2 ? highs(x[0][w], x[1][w]) : lows(x[0][w], x[1][w]);
            const uint32_t b1 = j % 2 ? highs(x[2][w], x[3][w]) : lows(x[2][w], x[3][w]);
            mma(out[at + j], hi, b0, b1);
            mma(out[at + j], lo, b0, b1);
        }
        if (i + DEPTH < N) {
            const int next = i + DEPTH, h = next / UNITS;
            load_v<COLS>(ring[i % DEPTH], v + 16 * h * v_bytes, v_bytes, next % UNITS, seen >> 16 * h, lane);
        }
    }
}

// The four warps' sums, added in order to `shared.words` as f32 [n_rows, SUM_STRIDE], on
// one max a row, and each row's (max, sum). Warps from n_active on had no cells.
template <int HD, int COLS>
__device__ __forceinline__ void merge_warps(SplitShared<HD, COLS>& shared, float (&out)[COLS / 8][4], const Running& run,
                                            int n_rows, int n_active, int warp, int lane) {
    const int g = lane / 4, c = lane % 4;
    for (int h = 0; h < 2; h++) {
        const float sum = row_sum(run.sum[h]);
        if (c == 0) shared.max[warp][g + 8 * h] = run.max[h], shared.sum[warp][g + 8 * h] = sum;
    }
    __syncthreads();  // also: no warp reads q's fragments any more
    float top[2] = {-INFINITY, -INFINITY};
    for (int i = 0; i < n_active; i++)
        for (int h = 0; h < 2; h++) top[h] = fmaxf(top[h], shared.max[i][g + 8 * h]);
    for (int w = 0; w < n_active; w++) {
        if (w > 0) __syncthreads();
        if (w != warp) continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = g + 8 * h;
            if (row >= n_rows) continue;
            const float f = exp2_fast(run.max[h] - finite_max(top[h]));
            float* to = (float*)shared.words + row * SplitShared<HD, COLS>::SUM_STRIDE;
#pragma unroll
            for (int u = 0; u < Units<COLS>::COUNT; u++) {
                // Columns 2c and 2c + 1 of the product are per_lane apart.
                const int per_lane = Units<COLS>::per_lane(u), first = Units<COLS>::first(u);
                float* at = to + first + 2 * c * per_lane;
                float before[8][2];  // all are read before one is written
#pragma unroll
                for (int j = 0; j < per_lane; j++) {
                    before[j][0] = w > 0 ? at[j] : 0.f;
                    before[j][1] = w > 0 ? at[j + per_lane] : 0.f;
                }
#pragma unroll
                for (int j = 0; j < per_lane; j++) {
                    at[j] = before[j][0] + out[first / 8 + j][2 * h] * f;
                    at[j + per_lane] = before[j][1] + out[first / 8 + j][2 * h + 1] * f;
                }
            }
        }
    }
    if (threadIdx.x < n_rows) {
        const int row = threadIdx.x;
        float most = -INFINITY, sum = 0.f;
        for (int w = 0; w < n_active; w++) most = fmaxf(most, shared.max[w][row]);
        for (int w = 0; w < n_active; w++)
            sum += shared.sum[w][row] * exp2_fast(shared.max[w][row] - finite_max(most));
        shared.total[row] = make_float2(most, sum);
    }
    __syncthreads();
}

// Writes the live rows: results when there is one split, else its share.
template <int HD, int COLS>
__device__ __forceinline__ void write_rows(const Attn& a, const SplitShared<HD, COLS>& shared, int first_row, int n_rows,
                                           int split, int n_split, float2* parts,
                                           float* part_out) {
    const float* sums = (const float*)shared.words;
    const int n_head = a.q.ne[1], group = group_of(a);
    const int head_kv = blockIdx.y / (HD / COLS), first_column = blockIdx.y % (HD / COLS) * COLS;
    for (int i = threadIdx.x; i < n_rows * COLS; i += ATTN_THREADS) {
        const int row = i / COLS, column = i % COLS, d = first_column + column, flat = first_row + row;
        const int token = flat / group, head = head_kv * group + flat % group;
        const float2 total = shared.total[row];
        const float x = sums[row * SplitShared<HD, COLS>::SUM_STRIDE + column];
        if (n_split == 1) {
            row_of<float>(a.dst, token)[head * HD + d] = total.y == 0.f ? 0.f : x / total.y;
        } else {
            const size_t part = ((size_t)token * n_head + head) * n_split + split;
            if (d == 0) parts[part] = total;
            if (total.y != 0.f) part_out[part * HD + d] = x;
        }
    }
}

// Tokens and q of the block's rows to shared memory.
template <int HD, int COLS>
__device__ __forceinline__ Tokens stage_rows(const Attn& a, SplitShared<HD, COLS>& shared, int first_row, int n_rows,
                                             int warp, int lane) {
    const int group = group_of(a), head_kv = blockIdx.y / (HD / COLS);
    Tokens tokens;
    tokens.first = first_row / group;
    tokens.count = (first_row + n_rows - 1) / group - tokens.first + 1;
    if (threadIdx.x < tokens.count) {
        shared.pos[threadIdx.x] = ints(a.pos)[tokens.first + threadIdx.x];
        shared.seq[threadIdx.x] = ints(a.seq)[tokens.first + threadIdx.x];
    }
    // Dead rows are left as they are: no cell is visible to them, and no row sees another.
    for (int row = warp; row < n_rows; row += ATTN_WARPS) {
        const int flat = first_row + row, token = flat / group, head = head_kv * group + flat % group;
        const int pos = ints(a.pos)[token];
        const float undo = stage_row<HD, true>(row_of<float>(a.q, head, token), shared.words, row, lane);
        if (lane == 0) shared.factor[row] = undo * score_factor(a, pos);
    }
    __syncthreads();
    return tokens;
}

template <int HD, int COLS>
__device__ __forceinline__ void attn_split(const Attn& a, int n_split, float2* parts, float* part_out) {
    __shared__ __align__(16) SplitShared<HD, COLS> shared;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int split = blockIdx.x % n_split, first_row = blockIdx.x / n_split * ROWS;
    int chunk = split * ATTN_WARPS + warp, cell = chunk * CHUNK_CELLS + lane;
    // Which cells are seen is asked a chunk ahead, the first time before the counts are
    // there to look at.
    const bool exists = cell < a.cell_pos.ne[0];
    int cell_pos = exists ? ints(a.cell_pos)[cell] : -1, cell_seq = exists ? ints(a.cell_seq)[cell] : -1;
    const int group = group_of(a), n_rows = min(ROWS, live_tokens(a) * group - first_row);
    const int n_cells = live_cells(a);
    const int n_chunks = (n_cells + CHUNK_CELLS - 1) / CHUNK_CELLS, n_left = n_chunks - split * ATTN_WARPS;
    if (n_rows <= 0 || (n_left <= 0 && n_split > 1)) return wait_for_inputs();
    const int stride = n_split * ATTN_WARPS;
    const char* k = a.k.data + blockIdx.y / (HD / COLS) * HD * 2;
    const char* v = a.v.data + blockIdx.y * COLS * 2;
    // The first chunk is on its way while others still write q and the newest cells, which
    // end in the same cache. Who sits where are inputs, there before the first kernel.
    if (cell < n_cells) {
        for (int i = 0; i < HD * 2; i += 128) prefetch(k + cell * a.k.nb[1] + i);
        for (int i = 0; i < COLS * 2; i += 128) prefetch(v + cell * a.v.nb[1] + i);
    }
    wait_for_inputs();
    if (cell >= n_cells) cell_pos = cell_seq = -1;
    const Tokens tokens = stage_rows<HD, COLS>(a, shared, first_row, n_rows, warp, lane);

    // This lane's rows g and g + 8: their tokens among the block's, -1 for dead rows.
    int token[2];
    float factor[2];
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h;
        token[h] = row < n_rows ? (first_row + row) / group - tokens.first : -1;
        factor[h] = shared.factor[row];
    }
    Running run;
    float out[COLS / 8][4] = {};
    for (; chunk < n_chunks; chunk += stride) {
        uint32_t seen = 0, visible[2] = {0, 0};
        for (int t = 0; t < tokens.count; t++) {
            const bool mine = sees(shared.pos[t], shared.seq[t], cell_pos, cell_seq, a.window);
            const uint32_t cells = __ballot_sync(ALL_LANES, mine);
            seen |= cells;
            if (t == token[0]) visible[0] = cells;
            if (t == token[1]) visible[1] = cells;
        }
        const long long first = (long long)chunk * CHUNK_CELLS;
        cell += stride * CHUNK_CELLS;
        cell_pos = cell < n_cells ? ints(a.cell_pos)[cell] : -1;
        cell_seq = cell < n_cells ? ints(a.cell_seq)[cell] : -1;
        if (seen == 0) continue;
        take_chunk<HD, COLS>(a, out, run, (const uint4*)shared.words, k + first * a.k.nb[1], v + first * a.v.nb[1], factor,
                       seen, visible, lane);
    }
    const int n_active = max(1, min(ATTN_WARPS, n_left));
    merge_warps<HD, COLS>(shared, out, run, n_rows, n_active, warp, lane);
    write_rows<HD, COLS>(a, shared, first_row, n_rows, split, n_split, parts, part_out);
}

#define ATTN_SPLIT(HD, COLS, BLOCKS)                                                \
    extern "C" __global__ void __launch_bounds__(ATTN_THREADS, BLOCKS)              \
        attn_split_##HD(ATTN_PARAMS, int n_split, float2* parts, float* part_out) { \
        let_next_start();                                                           \
        attn_split<HD, COLS>(ATTN_STRUCT, n_split, parts, part_out);                \
    }

ATTN_SPLIT(64, 64, 4)
ATTN_SPLIT(80, 80, 2)
ATTN_SPLIT(96, 96, 2)
ATTN_SPLIT(112, 112, 2)
ATTN_SPLIT(128, 128, 2)
ATTN_SPLIT(192, 192, 2)
ATTN_SPLIT(256, 128, 2)

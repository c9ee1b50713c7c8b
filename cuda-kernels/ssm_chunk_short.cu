// SSM_SCAN in chunks over few tokens (operands, <kind> and method: ssm_chunk.cu): every
// chunk is computed at once, and only their states are brought together one by one.
// After ssm_chunk_prepare:
//   states_<kind>   what each chunk adds to the state by its end; C . B of its tokens, from
//                   block `first_scores` on. block 128,
//                   grid = chunks * (n_head * ceil(head_dim / P) + n_group)
//   pass_<N>        N / 8 lanes for each row p of a head's state: what each chunk begins
//                   with, in the place of what it adds; the state at the end of a sequence
//                   grid = n_seqs * ceil(n_head * head_dim * N / 2048), block 256
//   outputs_<kind>  results. grid = chunks * n_head * ceil(head_dim / P), block 128,
//                   shared: `Shared` of C and h, then f32 [P]
//   scores    f32 [chunk][group][warp][8][128] C . B as the lanes of a warp of `outputs` hold
//                                             it: 16 tokens t, 8 tiles of 8 tokens s
//   states    f16 [chunk][head][slice][P][N]  each row times powers of two, its columns in
//                                             the order of `word_column`
//   undo      f32 [chunk][head][slice][P][4]  that undo this, of each quarter of a row; of
//                                             what a chunk begins with the first for all
//
// A piece of ssm_chunk_scan.cu waits for all of its chunks in turn and computes what they
// add twice, and C . B in every head. Here no chunk waits, three or four blocks share a
// multiprocessor, C . B is computed once a group, and states cross L2 four times for each
// chunk, as f16: NMSE 4e-8 more than there.
#include "ssm_chunk_out.cuh"

constexpr int PASS_WARPS = 8;
constexpr int PASS_BATCH = 4;           // chunks whose states are read at once
constexpr int ONE_WAVE = 4 * 132;       // blocks of `outputs` that an H200 runs at once (N <= 128)
constexpr int ALL_CHUNKS = 1 << 20;     // of a piece that is a whole sequence
constexpr int QUARTERS = CHUNK_WARPS;   // of a row, by the warps of `states`

// This lane's first four values of the 16 tokens of warp `warp`; each next WARP further.
__device__ __forceinline__ float4* scores_of(float* scores, size_t number, int warp) {
    return (float4*)(scores + (number * CHUNK_WARPS + warp) * 16 * CHUNK) + threadIdx.x % WARP;
}

// Neighbouring words of a lane of `states`, one of each tile.
template <int NT>
struct alignas(NT >= 4 ? 16 : 4 * NT) Words {
    uint32_t word[NT];
};

// First of the two columns in word `at` of a row as `states` writes it.
template <int N>
__device__ __forceinline__ int word_column(int at) {
    constexpr int NT = N / QUARTERS / 8;
    const int quarter = at / (4 * NT), c = at / NT % 4, tile = at % NT;
    return quarter * (N / QUARTERS) + 8 * tile + 2 * c;
}

// Number of the first row of this block's share of chunk `chunk`.
template <class T>
__device__ __forceinline__ size_t first_row(const Work<T>& work) {
    return ((size_t)work.piece.chunk * work.shares + work.share) * T::P;
}

// C . B of chunk and group `number` of all; `there` may be fewer than the grid has room for.
template <class T>
__device__ __forceinline__ void chunk_scores(const half* bc, float* scores, int number, bool there) {
    start();
    if (!there) return;
    const Shared<T, 2> sh;  // of which only B and C
    sh.copy(0, bc + (size_t)number * 2 * T::MATRIX);
    copies_wait<0>();
    __syncthreads();
    const int warp = threadIdx.x / WARP, row = 16 * warp;
    uint4 c[T::N / 16];
    load_c<T>(c, sh.b_of(0) + T::MATRIX, row);
    Scores s = {};
    multiply_cb<T>(s, c, sh.b_of(0), row);
    float4* to = scores_of(scores, number, warp);
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++) {
        if (pair_counts(j / 2, row)) to[WARP * j] = make_float4(s[j][0], s[j][1], s[j][2], s[j][3]);
    }
}

template <class T>
__device__ __forceinline__ void chunk_states(const Chunked& k, half* states, float* undo) {
    let_next_start();
    const Work<T> work(k);
    wait_for_inputs();
    if (work.chunks == 0) return;
    const Shared<T, 1> sh;
    sh.copy(0, work.bc);
    Ahead<T> ahead;
    fetch<T>(ahead, work.source, work.piece.first, work.tokens(0), work.piece.chunk);
    stage<T>(ahead, sh);
    copies_wait<0>();
    __syncthreads();  // B and x are here
    const Step step = weigh_tokens(sh);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const size_t first = first_row<T>(work) + lane / 4;
    each_sum<T>(sh, sh.b_of(0), [&](int m, const float(&sum)[T::NT][4]) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float most = 0.f;
#pragma unroll
            for (int j = 0; j < T::NT; j++) {
                most = fmaxf(most, fmaxf(fabsf(sum[j][2 * e]), fabsf(sum[j][2 * e + 1])));
            }
            const Lift up = lift(quad_max(most), TOP_H);
            Words<T::NT> row;
#pragma unroll
            for (int j = 0; j < T::NT; j++) {
                row.word[j] = pack_half2(sum[j][2 * e] * up.factor, sum[j][2 * e + 1] * up.factor);
            }
            const size_t at = first + 16 * m + 8 * e;
            ((Words<T::NT>*)(states + at * T::N + warp * T::SLICE))[lane % 4] = row;
            if (lane % 4 == 0) undo[at * QUARTERS + warp] = up.undo * step.undo;
        }
    });
}

// Rows of states in pass: 16 bytes, which is 8 values, a lane.
template <int N>
struct PassRow {
    static constexpr int LANES = N / 8, PER_WARP = WARP / LANES;
    static constexpr int QUARTER_LANES = LANES / QUARTERS;

    // Maximum over the lanes of a row.
    static __device__ __forceinline__ float most(float x) {
#pragma unroll
        for (int o = LANES / 2; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
        return x;
    }

    // Calls `f` with each pair of values of this lane's and their place in a row of the cache.
    template <class F>
    static __device__ __forceinline__ void each_pair(float2 (&h)[4], float* row, int d_state, F f) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = word_column<N>(threadIdx.x % LANES * 4 + i);
            if (n < d_state) f(h[i], (float2*)(row + n));
        }
    }
};

// Row p of a head through the chunks of a sequence: `states`, `undo` and `steps` are those
// of its first one. `stride`, rows from chunk to chunk, times all chunks counts less than
// 2^29 values: scratch memory has 2^30 bytes at most.
template <int N>
__device__ __forceinline__ void pass_row(float2 (&h)[4], int chunks, half* states, float* undo, int stride,
                                         const float* steps, int steps_stride) {
    using Row = PassRow<N>;
    const int lane = threadIdx.x % Row::LANES;
    // Moved on from chunk to chunk: that is a third of the instructions of products.
    uint4* at = (uint4*)states + lane;
    const uint4* add_at = at;
    const float* unit_at = undo + lane / Row::QUARTER_LANES;
    steps += CHUNK - 1;
    for (int from = 0; from < chunks; from += PASS_BATCH) {
        uint4 add[PASS_BATCH];
        float unit[PASS_BATCH], keep[PASS_BATCH];
#pragma unroll
        for (int j = 0; j < PASS_BATCH; j++) {
            if (from + j >= chunks) continue;
            keep[j] = exp2_fast(*steps), unit[j] = *unit_at, add[j] = *add_at;
            steps += steps_stride, unit_at += stride * QUARTERS, add_at += stride * Row::LANES;
        }
        __syncwarp();  // all lanes have read the units that are overwritten
#pragma unroll
        for (int j = 0; j < PASS_BATCH; j++) {
            if (from + j >= chunks) continue;
            float most = 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) most = fmaxf(most, fmaxf(fabsf(h[i].x), fabsf(h[i].y)));
            const Lift up = lift(Row::most(most), TOP_H);
            if (lane == 0) *undo = up.undo;
            const uint32_t words[4] = {add[j].x, add[j].y, add[j].z, add[j].w};
            uint32_t begins[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                begins[i] = pack_half2(h[i].x * up.factor, h[i].y * up.factor);
                const float2 v = unpack_half2(words[i]);
                h[i].x = fmaf(v.x, unit[j], h[i].x * keep[j]);
                h[i].y = fmaf(v.y, unit[j], h[i].y * keep[j]);
            }
            *at = make_uint4(begins[0], begins[1], begins[2], begins[3]);
            undo += stride * QUARTERS, at += stride * Row::LANES;
        }
    }
}

template <int N>
__device__ __forceinline__ void chunk_pass(const View& state, const View& x, const View& ids, const View& rows,
                                           const float* steps, half* states, float* undo, int columns) {
    using Row = PassRow<N>;
    constexpr int BLOCK_ROWS = PASS_WARPS * Row::PER_WARP;
    let_next_start();
    const int head_dim = state.ne[1], n_head = state.ne[2], n_tokens = dim(x, 2);
    const int jobs = (n_head * head_dim + BLOCK_ROWS - 1) / BLOCK_ROWS;
    // Heads have multiples of 16 rows: those of a warp are all there, or none.
    const int job = blockIdx.x % jobs * BLOCK_ROWS + threadIdx.x / Row::LANES;
    const Piece all = find_piece(rows, ids.ne[0], n_tokens, ALL_CHUNKS, blockIdx.x / jobs);
    wait_for_inputs();
    if (all.sequence < 0 || job >= n_head * head_dim) return;
    const Sequence seq = sequence(ids, rows, all.sequence, n_tokens, state.ne[3]);
    if (seq.n == 0) return;
    const int head = job / head_dim, p = job % head_dim, slices = (head_dim + columns - 1) / columns;
    const int stride = n_head * slices * columns, steps_stride = n_head * 2 * CHUNK;
    const size_t row = (size_t)all.chunk * stride + head * slices * columns + p;
    float* slot = row_of<float>(state, p, head, seq.slot);
    float2 h[4] = {};
    if (!seq.fresh) Row::each_pair(h, slot, state.ne[0], [](float2& v, const float2* at) { v = *at; });
    pass_row<N>(h, (seq.n + CHUNK - 1) / CHUNK, states + row * N, undo + row * QUARTERS, stride,
                steps + (size_t)all.chunk * steps_stride + head * 2 * CHUNK, steps_stride);
    Row::each_pair(h, slot, state.ne[0], [](const float2& v, float2* at) { *at = v; });
}

// C of 16 tokens from `row` on as a left operand, its columns in the order of `word_column`.
template <class T>
__device__ __forceinline__ void load_c_as_states(uint4 (&c)[T::N / 16], const half* from, int row) {
    row += threadIdx.x % WARP / 4;
    auto word = [&](int r, int at) {
        const int n = word_column<T::N>(at);
        return *(const uint32_t*)(from + swizzled<T::N>(r, n / 8) + n % 8);
    };
#pragma unroll
    for (int k = 0; k < T::N / 16; k++) {
        const int low = 8 * k + threadIdx.x % 4, high = low + 4;
        c[k] = make_uint4(word(row, low), word(row + 8, low), word(row, high), word(row + 8, high));
    }
}

template <class T>
__device__ __forceinline__ void chunk_outputs(const Chunked& k, const half* states, const float* undo, float* scores,
                                              const View& dst, const View& d, const View& gate) {
    // Blocks of the next launch that wait take the room of those that have not started.
    if (gridDim.x <= ONE_WAVE) let_next_start();
    const Work<T> work(k);
    wait_for_inputs();
    if (work.chunks == 0) return;
    const Shared<T, 1> sh;
    float* h_undo = (float*)(sh.h + T::P * T::H_PITCH);  // [P]
    const size_t first = first_row<T>(work);
    Ahead<T> ahead;
    fetch<T>(ahead, work.source, work.piece.first, work.tokens(0), work.piece.chunk);
    sh.copy(0, work.bc + T::MATRIX);  // C
    constexpr int PIECES = T::P * T::N / 8;  // of 16 bytes
    static_assert(PIECES % CHUNK_THREADS == 0 && T::P <= CHUNK_THREADS, "every thread copies as much");
#pragma unroll
    for (int i = 0; i < PIECES / CHUNK_THREADS; i++) {
        const int at = i * CHUNK_THREADS + threadIdx.x, row = at / (T::N / 8), piece = at % (T::N / 8);
        copy_async(sh.h + row * T::H_PITCH + 8 * piece, states + first * T::N + 8 * at, true);
    }
    copies_commit();
    const Finish fin(work, dst, d, gate);
    expect_z<T>(fin, work.piece.first, work.tokens(0), work.source.columns);
    // As in `chunk_scan`.
    const int warp = blockIdx.x < gridDim.x / 2 ? threadIdx.x / WARP : CHUNK_WARPS - 1 - threadIdx.x / WARP;
    const int row = 16 * warp;
    Scores s = {};
    const size_t number = (size_t)work.piece.chunk * k.n_group + work.head / (k.state.ne[2] / k.n_group);
    const float4* from = scores_of(scores, number, warp);
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++) {
        if (!pair_counts(j / 2, row)) continue;
        const float4 v = from[WARP * j];
        s[j][0] = v.x, s[j][1] = v.y, s[j][2] = v.z, s[j][3] = v.w;
    }
    if (threadIdx.x < T::P) h_undo[threadIdx.x] = undo[(first + threadIdx.x) * QUARTERS];
    stage<T>(ahead, sh);
    copies_wait<0>();
    __syncthreads();  // C, x and h are here
    if (row >= work.tokens(0)) return;
    uint4 c[T::N / 16], m[CHUNK / 16];
    const float2 m_undo = mix(m, s, sh, row);
    load_c_as_states<T>(c, sh.bc, row);
    results<T>(m, m_undo, c, sh, RowUndo{h_undo}, row, work.piece.first, work.tokens(0), work.source.columns, fin);
}

// A piece is one chunk.
#define SHORT_PARAMS \
    View state, View x, View ids, View rows, const half *bc, const float *scales, const float *steps, int n_group
#define SHORT_STRUCT {state, x, ids, rows, bc, scales, steps, nullptr, nullptr, n_group, 1}

#define SSM_CHUNK_SHORT(KIND, N, P)                                                                              \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 4)                                               \
        ssm_chunk_states_##KIND(SHORT_PARAMS, half* states, float* undo, float* scores, int first_scores) {      \
        if (blockIdx.x >= first_scores) {                                                                        \
            const int number = blockIdx.x - first_scores;                                                        \
            const Piece p = find_piece(rows, ids.ne[0], dim(x, 2), 1, number / n_group);                         \
            chunk_scores<Tile<N, P, 1>>(bc, scores, number, p.sequence >= 0);                                    \
        } else {                                                                                                 \
            chunk_states<Tile<N, P, 1>>(SHORT_STRUCT, states, undo);                                             \
        }                                                                                                        \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, N <= 128 ? 4 : 3)                                \
        ssm_chunk_outputs_##KIND(SHORT_PARAMS, const half* states, const float* undo, float* scores, View dst,   \
                                 View d, View z) {                                                               \
        chunk_outputs<Tile<N, P, 1>>(SHORT_STRUCT, states, undo, scores, dst, d, z);                             \
    }

SSM_CHUNK_SHORT(64, 64, 64)
SSM_CHUNK_SHORT(128, 128, 64)
SSM_CHUNK_SHORT(128x80, 128, 80)
SSM_CHUNK_SHORT(256, 256, 32)

#define SSM_CHUNK_PASS(N)                                                                               \
    extern "C" __global__ void __launch_bounds__(PASS_WARPS* WARP, 3)                                   \
        ssm_chunk_pass_##N(View state, View x, View ids, View rows, const float* steps, half* states,   \
                           float* undo, int columns) {                                                  \
        chunk_pass<N>(state, x, ids, rows, steps, states, undo, columns);                               \
    }

SSM_CHUNK_PASS(64)
SSM_CHUNK_PASS(128)
SSM_CHUNK_PASS(256)

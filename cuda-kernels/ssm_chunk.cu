// ssm_chunk_prepare, ssm_chunk_local_<kind>, ssm_chunk_scan_<kind>: SSM_SCAN with one decay
// a head for many tokens, as matrix products over chunks of 64 tokens (SSD, arXiv
// 2405.21060, section 6). src/graph/recurrent.rs has the operands; all are f32, rows
// contiguous, other strides and addresses any multiple of 4 bytes, dst contiguous.
//
//   <kind>    N = d_state rounded up, P = columns of a head that a block takes
//             64: 64, 64    128: 128, 64    128x80: 128, 80    256: 256, 32
//   prepare   a warp for each chunk and token row of a group (B and C) or head (dt)
//             grid = ceil(chunks * (64 n_group + n_head) / 8), block 256
//   local     the state at the end of each piece (some chunks), as if it began with zeros;
//             not of a sequence's last piece. grid = pieces * n_head * ceil(head_dim / P)
//   scan      results, and states at the end of sequences; same grid, block 128
//   scratch, with chunks counted through all sequences, each from its first token:
//   bc        f16 [chunk][group][B, C][64][N], swizzled; each row times a power of two
//   scales    f32 [chunk][group][B, C][64]     that undo this
//   steps     f32 [chunk][head][2][64]         log2 of the decay since the chunk began; dt
//   local     f32 [piece][head][slice][P * N]  states at the end of pieces, of sequences of
//             several only; a last piece holds what the sequence started from
//   decays    f32 [piece][head]                of whole pieces
//
// With L[t, s] = exp of the sum of dt a over s + 1 .. t, in a chunk that begins with h:
//   y[t] = sum over s <= t of (C[t] . B[s]) L[t, s] dt[s] x[s] + decay[t] C[t] . h
//   h    = decay[end] h + sum over s of L[end, s] dt[s] x[s] B[s]
//
// Precision. Operands are f16 with f32 sums and states in f32: every rounding costs 2^-12
// at most, an NMSE of 4e-8 each, some 2e-7 together. f16 has no range, so every operand is
// brought near its top by powers of two: rows of B, C and x by themselves (undone in the
// weights of tokens), rows of M = (C . B) L dt by their largest value, w and h by tile.
// What is lost lies 2^-21 below the largest term of a sum. Only differences of log decays
// are raised to powers, and none of s > t.
//
// Work. A token and head take 4K flop for M x, 16K for C h, 16K for the state (again in
// `local`) and 8K for C B^T, which every head computes: 45K x 4096 x 64 = 12 GFLOP, 20 us
// of f16 tensor cores. Bytes: x twice, y, z, and from L2 B and C as f16 for each head, 72
// KB a chunk and head: some 55 us of L2. Two blocks of 4 warps a multiprocessor.
#include "ssm_chunk.cuh"

constexpr int PREPARE_WARPS = 8;

// Row `r` of a chunk, of the `n` tokens from `first` on, of B and C.
__device__ __forceinline__ void prepare_row(const View (&bc)[2], half* to, float* scales, int group, int first, int n,
                                            int r, int width) {
    const int lane = threadIdx.x % WARP;
    constexpr int FOURS = 256 / (4 * WARP);
    float4 v[2][FOURS];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const float* row = row_of<const float>(bc[m], group, first + r);
        const bool fours = in_fours(row, 0);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const int at = 4 * (WARP * i + lane);
            v[m][i] = r < n && at < bc[m].ne[0] ? load_four(row + at, fours) : make_float4(0.f, 0.f, 0.f, 0.f);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float most = 0.f;
#pragma unroll
        for (int i = 0; i < FOURS; i++) most = fmaxf(most, most_of(v[m][i]));
        const Lift up = lift(warp_max(most), m == 0 ? TOP_B : TOP_C);
        if (lane == 0) scales[m * CHUNK + r] = up.undo;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const int at = 4 * (WARP * i + lane);
            // `swizzled` for a width of this launch.
            half* place = to + (m * CHUNK + r) * width + ((at / 8) ^ (r & 7)) * 8 + at % 8;
            if (at < width) *(uint2*)place = lifted(v[m][i], up.factor);
        }
    }
}

// dt and log decays of a chunk of a head. A step of 2^-150 leaves nothing of any f32, so
// none counts as more: sums keep their last bits for the steps after it.
__device__ __forceinline__ void prepare_steps(const View& dt, const View& a, const View& dt_bias, float* steps,
                                              int head, int first, int n) {
    const int lane = threadIdx.x % WARP;
    const float bias = dt_bias.data ? ((const float*)dt_bias.data)[head] : 0.f;
    const float log_decay = ((const float*)a.data)[head] * LOG2_E;
    float step[2], log[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = 2 * lane + i;
        step[i] = t < n ? Softplus()(row_of<const float>(dt, first + t)[head] + bias) : 0.f;
        const float x = step[i] * log_decay;
        log[i] = x < -150.f ? -150.f : x > 150.f ? 150.f : x;  // NaN stays NaN
    }
    float end = log[0] + log[1];
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        const float other = __shfl_up_sync(ALL_LANES, end, o);
        if (lane >= o) end += other;
    }
    float before = __shfl_up_sync(ALL_LANES, end, 1);
    if (lane == 0) before = 0.f;
    ((float2*)steps)[lane] = make_float2(before + log[0], end);
    ((float2*)(steps + CHUNK))[lane] = make_float2(step[0], step[1]);
}

extern "C" __global__ void __launch_bounds__(PREPARE_WARPS* WARP)
    ssm_chunk_prepare(View b, View c, View dt, View a, View dt_bias, View ids, View rows, half* bc, float* scales,
                      float* steps, int width) {
    start();
    const int n_group = b.ne[1], n_head = dt.ne[0], jobs = CHUNK * n_group + n_head;
    const long long number = (long long)blockIdx.x * PREPARE_WARPS + threadIdx.x / WARP;
    const int job = number % jobs;
    const Piece p = find_piece(rows, ids.ne[0], dim(b, 2), 1, number / jobs);
    if (p.sequence < 0) return;
    const int n = p.end - p.first;
    if (job < CHUNK * n_group) {
        const size_t at = (size_t)p.chunk * n_group + job / CHUNK;
        prepare_row({b, c}, bc + at * 2 * CHUNK * width, scales + at * 2 * CHUNK, job / CHUNK, p.first, n, job % CHUNK,
                    width);
    } else {
        const int head = job - CHUNK * n_group;
        prepare_steps(dt, a, dt_bias, steps + ((size_t)p.chunk * n_head + head) * 2 * CHUNK, head, p.first, n);
    }
}

// What `local` and `scan` have in common.
struct Chunked {
    View state, x, ids, rows;
    const half* bc;
    const float *scales, *steps;
    float *local, *decays;
    int n_group, piece_chunks;
};

#define CHUNKED_PARAMS                                                                                             \
    View state, View x, View ids, View rows, const half *bc, const float *scales, const float *steps, float *local, \
        float *decays, int n_group, int piece_chunks
#define CHUNKED_STRUCT {state, x, ids, rows, bc, scales, steps, local, decays, n_group, piece_chunks}

// A block's piece of a sequence, head and columns.
template <class T>
struct Work {
    Piece piece;
    Sequence seq;
    int head, column, share;  // share: number among the blocks of a piece
    int shares, chunks;
    Source source;
    const half* bc;  // of the first chunk
    size_t bc_stride;

    __device__ __forceinline__ Work(const Chunked& k) {
        const int head_dim = k.state.ne[1], n_head = k.state.ne[2], slices = (head_dim + T::P - 1) / T::P;
        shares = n_head * slices;
        share = blockIdx.x % shares;
        head = share / slices;
        column = share % slices * T::P;
        const int n_tokens = dim(k.x, 2);
        piece = find_piece(k.rows, k.ids.ne[0], n_tokens, k.piece_chunks, blockIdx.x / shares);
        if (piece.sequence < 0) {
            chunks = 0;
            return;
        }
        seq = sequence(k.ids, k.rows, piece.sequence, n_tokens, k.state.ne[3]);
        chunks = seq.n == 0 ? 0 : (piece.end - piece.first + CHUNK - 1) / CHUNK;
        const int group = head / (n_head / k.n_group), c = threadIdx.x % 4;
        source.x = (const char*)(row_of<const float>(k.x, head) + column);
        source.x_stride = k.x.nb[2];
        source.columns = head_dim - column;
        source.fours = in_fours(source.x, source.x_stride);
        source.token = c < 2 ? k.steps + head * 2 * CHUNK + c * CHUNK : k.scales + group * 2 * CHUNK + (c - 2) * CHUNK;
        source.token_stride = (c < 2 ? n_head : k.n_group) * 2 * CHUNK;
        bc_stride = (size_t)k.n_group * 2 * T::MATRIX;
        bc = k.bc + piece.chunk * bc_stride + (size_t)group * 2 * T::MATRIX;
    }

    __device__ __forceinline__ int first(int chunk) const { return piece.first + chunk * CHUNK; }
    __device__ __forceinline__ int tokens(int chunk) const { return min(piece.end - first(chunk), CHUNK); }

    // This thread's values in the local state of piece `number` of the sequence.
    __device__ __forceinline__ float4* kept(const Chunked& k, int number) const {
        const size_t at = (size_t)(piece.kept + number) * shares + share;
        return (float4*)(k.local + at * T::P * T::N) + threadIdx.x;
    }

    // Row 16 m + g + 8 e of the state of the sequence, or null where the head has none.
    __device__ __forceinline__ float* slot_row(const Chunked& k, int m, int e) const {
        const int p = column + 16 * m + 8 * e + threadIdx.x % WARP / 4;
        return p < k.state.ne[1] ? row_of<float>(k.state, p, head, seq.slot) : nullptr;
    }

    // Calls `f` with each pair of values and its place in the cache; d_state is even.
    template <class F>
    __device__ __forceinline__ void each_pair(const Chunked& k, F f) const {
#pragma unroll
        for (int m = 0; m < T::MT; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float* row = slot_row(k, m, e);
#pragma unroll
                for (int j = 0; j < T::NT; j++) {
                    const int n = threadIdx.x / WARP * T::SLICE + 8 * j + threadIdx.x % 4 * 2;
                    f(m, j, 2 * e, row && n < k.state.ne[0] ? row + n : nullptr);
                }
            }
    }

    __device__ __forceinline__ void load_slot(const Chunked& k, State<T>& h) const {
        each_pair(k, [&](int m, int j, int i, const float* at) {
            const bool there = at && !seq.fresh;
            h[m][j][i] = there ? at[0] : 0.f, h[m][j][i + 1] = there ? at[1] : 0.f;
        });
    }

    __device__ __forceinline__ void store_slot(const Chunked& k, const State<T>& h) const {
        each_pair(k, [&](int m, int j, int i, float* at) {
            if (at) at[0] = h[m][j][i], at[1] = h[m][j][i + 1];
        });
    }

    __device__ __forceinline__ void store_kept(const Chunked& k, const State<T>& h, int number) const {
        float4* to = kept(k, number);
#pragma unroll
        for (int i = 0; i < T::MT * T::NT; i++) {
            const float(&v)[4] = h[i / T::NT][i % T::NT];
            to[i * CHUNK_THREADS] = make_float4(v[0], v[1], v[2], v[3]);
        }
    }

    // h = h * decay + the local state of a piece.
    __device__ __forceinline__ void add_kept(const Chunked& k, State<T>& h, int number, float decay) const {
        const float4* from = kept(k, number);
#pragma unroll
        for (int i = 0; i < T::MT * T::NT; i++) {
            float(&v)[4] = h[i / T::NT][i % T::NT];
            const float4 add = from[i * CHUNK_THREADS];
            v[0] = fmaf(v[0], decay, add.x), v[1] = fmaf(v[1], decay, add.y);
            v[2] = fmaf(v[2], decay, add.z), v[3] = fmaf(v[3], decay, add.w);
        }
    }

    // The state that the piece begins with.
    __device__ __forceinline__ void load_first(const Chunked& k, State<T>& h) const {
        if (piece.count == 1) {
            load_slot(k, h);
            return;
        }
#pragma unroll
        for (int i = 0; i < T::MT * T::NT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) h[i / T::NT][i % T::NT][e] = 0.f;
        // The slot itself may be overwritten by now: another block keeps what it held.
        add_kept(k, h, piece.number == 0 ? piece.count - 1 : 0, 0.f);
        for (int i = 1; i < piece.number; i++) {
            add_kept(k, h, i, k.decays[(size_t)(piece.kept + i) * k.state.ne[2] + head]);
        }
    }
};

template <class T>
__device__ __forceinline__ void chunk_local(const Chunked& k) {
    let_next_start();
    const Work<T> work(k);
    wait_for_inputs();
    if (work.chunks == 0 || work.piece.number == work.piece.count - 1) return;
    const Shared<T, 1> sh;
    sh.copy(0, work.bc);
    Ahead<T> ahead;
    fetch<T>(ahead, work.source, work.piece.first, work.tokens(0), work.piece.chunk);
    State<T> h = {};
    if (work.piece.number == 0) {
        work.load_slot(k, h);
        work.store_kept(k, h, work.piece.count - 1);
    }
    stage<T>(ahead, sh);
    float log_decay = 0.f;
    for (int i = 0; i < work.chunks; i++) {
        copies_wait<0>();
        __syncthreads();  // B and x are here
        const bool more = i + 1 < work.chunks;
        if (more) {
            if (T::STAGES == 2) sh.copy(i + 1, work.bc + (i + 1) * work.bc_stride);
            fetch<T>(ahead, work.source, work.first(i + 1), work.tokens(i + 1), work.piece.chunk + i + 1);
        }
        log_decay += sh.log_decay[CHUNK - 1];
        add_chunk<T>(h, sh, sh.b_of(i), weigh_tokens(sh));
        __syncthreads();  // they may be overwritten
        if (more) {
            if (T::STAGES == 1) sh.copy(i + 1, work.bc + (i + 1) * work.bc_stride);
            stage<T>(ahead, sh);
        }
    }
    work.store_kept(k, h, work.piece.number);
    if (work.column == 0 && threadIdx.x == 0) {
        k.decays[(size_t)(work.piece.kept + work.piece.number) * k.state.ne[2] + work.head] = exp2_fast(log_decay);
    }
}

// What follows the scan, for this block's columns.
struct Finish {
    char* y;  // first column in token 0
    long long y_stride;
    bool skip;
    float d;
    const char* z;  // null: no gate
    long long z_stride;
    bool pairs;  // z is there, and aligned to 8 bytes
};

// SiLU to a few ulp; where e^-z overflows, 0.
__device__ __forceinline__ float gate_of(float z) { return z * reciprocal_fast(1.f + exp2_fast(-LOG2_E * z)); }

// z of this lane's two tokens in WIDE columns.
template <bool PAIRS, int WIDE>
__device__ __forceinline__ void load_gates(float2 (&z)[WIDE / 8][2], const Finish& fin, int first, const int (&t)[2],
                                           int n, int column, int columns) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float* row = (const float*)(fin.z + (first + t[e]) * fin.z_stride) + column + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < WIDE / 8; i++) {
            const bool there = t[e] < n && column + i / 2 * 16 < columns;
            z[i][e] = make_float2(0.f, 0.f);
            if (there && PAIRS) z[i][e] = *(const float2*)(row + 8 * i);
            if (there && !PAIRS) z[i][e] = make_float2(row[8 * i], row[8 * i + 1]);
        }
    }
}

// C . B of 16 tokens s from `at` on becomes M; where MASKED, those after t become 0.
template <bool MASKED, class S>
__device__ __forceinline__ void decay(float (&s0)[4], float (&s1)[4], float2& most, const S& sh, int at, int row,
                                      float2 log_decay) {
    const int lane = threadIdx.x % WARP;
    at += lane % 4 * 2;
    const int past = row + lane / 4 - at;  // t - s of the first value
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float(&s)[4] = i == 0 ? s0 : s1;
        const float2 log = *(const float2*)(sh.log_decay + at + 8 * i), f = *(const float2*)(sh.weight + at + 8 * i);
        s[0] *= f.x * exp2_fast(log_decay.x - log.x), s[1] *= f.y * exp2_fast(log_decay.x - log.y);
        s[2] *= f.x * exp2_fast(log_decay.y - log.x), s[3] *= f.y * exp2_fast(log_decay.y - log.y);
        if (MASKED) {
            // The decay may be infinite there: not a factor of 0.
            s[0] = past >= 8 * i ? s[0] : 0.f, s[1] = past >= 8 * i + 1 ? s[1] : 0.f;
            s[2] = past + 8 >= 8 * i ? s[2] : 0.f, s[3] = past + 8 >= 8 * i + 1 ? s[3] : 0.f;
        }
        most.x = fmaxf(most.x, fmaxf(fabsf(s[0]), fabsf(s[1])));
        most.y = fmaxf(most.y, fmaxf(fabsf(s[2]), fabsf(s[3])));
    }
}

// M[t, s] of 16 tokens t from `row` on as the left operand of its product with x, 16
// tokens s at a time; the power of two that undoes the lift of rows g and g + 8.
template <class T, class S>
__device__ __forceinline__ float2 mix(uint4 (&m)[CHUNK / 16], const S& sh, const half* b,
                                      const uint4 (&c)[T::N / 16], int row, float2 log_decay) {
    const int lane = threadIdx.x % WARP;
    float s[CHUNK / 8][4] = {};
    float2 most = make_float2(0.f, 0.f);
    // Two tiles at a time: four independent sums keep the tensor cores busy.
#pragma unroll
    for (int pair = 0; pair < CHUNK / 32; pair++) {
        if (32 * pair > row) continue;
        // Matrices: tokens 0 .. 7 at k and k + 8, then tokens 8 .. 15.
        const int token = 32 * pair + lane / 16 * 8 + lane % 8;
#pragma unroll
        for (int k = 0; k < T::N / 16; k++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t r[4];
                load_matrices(r, b + swizzled<T::N>(token + 16 * i, 2 * k + lane / 8 % 2));
                mma(s[4 * pair + 2 * i], c[k], r[0], r[1]);
                mma(s[4 * pair + 2 * i + 1], c[k], r[2], r[3]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        if (16 * j < row) {
            decay<false>(s[2 * j], s[2 * j + 1], most, sh, 16 * j, row, log_decay);
        } else if (32 * (j / 2) <= row) {
            decay<true>(s[2 * j], s[2 * j + 1], most, sh, 16 * j, row, log_decay);
        }
    }
    const Lift low = lift(quad_max(most.x), TOP_M), high = lift(quad_max(most.y), TOP_M);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        m[j].x = pack_half2(s[2 * j][0] * low.factor, s[2 * j][1] * low.factor);
        m[j].y = pack_half2(s[2 * j][2] * high.factor, s[2 * j][3] * high.factor);
        m[j].z = pack_half2(s[2 * j + 1][0] * low.factor, s[2 * j + 1][1] * low.factor);
        m[j].w = pack_half2(s[2 * j + 1][2] * high.factor, s[2 * j + 1][3] * high.factor);
    }
    return make_float2(low.undo, high.undo);
}

// Results of 16 tokens, from `row` on in the chunk that begins with token `first` and has
// `n`, which began with h.
template <class T, class S>
__device__ __forceinline__ void outputs(const S& sh, const half* b, float h_undo, int row, int first, int n,
                                        int columns, const Finish& fin) {
    const int lane = threadIdx.x % WARP, low = lane / 8 % 2, high = lane / 16;
    uint4 c[T::N / 16];
#pragma unroll
    for (int k = 0; k < T::N / 16; k++) {
        // Matrices: rows 0 .. 7 and 8 .. 15 at k, then at k + 8.
        uint32_t r[4];
        load_matrices(r, b + T::MATRIX + swizzled<T::N>(row + 8 * low + lane % 8, 2 * k + high));
        c[k] = make_uint4(r[0], r[1], r[2], r[3]);
    }
    const int t[2] = {row + lane / 4, row + lane / 4 + 8};
    const float2 log_decay = make_float2(sh.log_decay[t[0]], sh.log_decay[t[1]]);
    uint4 m[CHUNK / 16];
    const float2 m_undo = mix<T>(m, sh, b, c, row, log_decay);
    const float inside[2] = {m_undo.x * sh.c_undo[t[0]], m_undo.y * sh.c_undo[t[1]]};
    const float before[2] = {exp2_fast(log_decay.x) * sh.c_undo[t[0]], exp2_fast(log_decay.y) * sh.c_undo[t[1]]};

    constexpr int WIDE = T::P % 32 == 0 && T::N <= 128 ? 32 : 16;  // columns at a time, by registers
#pragma unroll
    for (int column = 0; column < T::P; column += WIDE) {
        if (column >= columns) break;
        float2 z[WIDE / 8][2];
        if (fin.pairs) {
            load_gates<true, WIDE>(z, fin, first, t, n, column, columns);
        } else if (fin.z) {
            load_gates<false, WIDE>(z, fin, first, t, n, column, columns);
        }
        float in[WIDE / 8][4] = {}, from_h[WIDE / 8][4] = {};
        // Matrices: tokens 0 .. 7, then 8 .. 15, of 8 columns; then of the next 8.
        const half* x = sh.x + (8 * low + lane % 8) * T::X_PITCH + column + 8 * high;
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
            if (32 * (j / 2) > row) continue;
#pragma unroll
            for (int i = 0; i < WIDE / 16; i++) {
                uint32_t r[4];
                load_matrices_transposed(r, x + 16 * j * T::X_PITCH + 16 * i);
                mma(in[2 * i], m[j], r[0], r[1]);
                mma(in[2 * i + 1], m[j], r[2], r[3]);
            }
        }
        const half* h = sh.h + (column + 8 * high + lane % 8) * T::H_PITCH + 8 * low;
#pragma unroll
        for (int k = 0; k < T::N / 16; k++) {
#pragma unroll
            for (int i = 0; i < WIDE / 16; i++) {
                uint32_t r[4];
                load_matrices(r, h + 16 * i * T::H_PITCH + 16 * k);
                mma(from_h[2 * i], c[k], r[0], r[1]);
                mma(from_h[2 * i + 1], c[k], r[2], r[3]);
            }
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float skip = fin.d * sh.x_undo[t[e]];
            float2* y_row = (float2*)(fin.y + (first + t[e]) * fin.y_stride) + lane % 4;
            const half2* x_row = (const half2*)(sh.x + t[e] * T::X_PITCH) + lane % 4;
#pragma unroll
            for (int i = 0; i < WIDE / 8; i++) {
                const int at = column / 2 + 4 * i;
                float2 y;
                y.x = fmaf(in[i][2 * e], inside[e], from_h[i][2 * e] * h_undo * before[e]);
                y.y = fmaf(in[i][2 * e + 1], inside[e], from_h[i][2 * e + 1] * h_undo * before[e]);
                if (fin.skip) {
                    const float2 v = __half22float2(x_row[at]);
                    y.x = fmaf(v.x, skip, y.x), y.y = fmaf(v.y, skip, y.y);
                }
                if (fin.z) y.x *= gate_of(z[i][e].x), y.y *= gate_of(z[i][e].y);
                if (t[e] < n && column + i / 2 * 16 < columns) y_row[at] = y;
            }
        }
    }
}

// Largest value of this warp's share of the state.
template <class T>
__device__ __forceinline__ float most_of_state(const State<T>& h) {
    float most = 0.f;
#pragma unroll
    for (int m = 0; m < T::MT; m++)
#pragma unroll
        for (int j = 0; j < T::NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(h[m][j][i]));
    return warp_max(most);
}

// The state as the right operand of C h; gives what undoes its lift.
template <class T, class S>
__device__ __forceinline__ float publish(const State<T>& h, const S& sh) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Lift up = lift(fmaxf(fmaxf(sh.most[0], sh.most[1]), fmaxf(sh.most[2], sh.most[3])), TOP_H);
    half* to = sh.h + lane / 4 * T::H_PITCH + warp * T::SLICE + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < T::MT; m++)
#pragma unroll
        for (int j = 0; j < T::NT; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float v0 = h[m][j][2 * e] * up.factor, v1 = h[m][j][2 * e + 1] * up.factor;
                *(uint32_t*)(to + (16 * m + 8 * e) * T::H_PITCH + 8 * j) = pack_half2(v0, v1);
            }
    return up.undo;
}

// Asks for the z of the `n` tokens from `first` on.
template <class T>
__device__ __forceinline__ void expect_z(const Finish& fin, int first, int n, int columns) {
    static_assert(CHUNK_THREADS == 2 * CHUNK, "two threads a token");
    const int row = threadIdx.x / 2, half = threadIdx.x % 2 * 128;
    if (!fin.z || row >= n) return;
    const char* z = fin.z + (first + row) * fin.z_stride + half;
#pragma unroll
    for (int at = 0; at < T::P * 4; at += 256)
        if (at + half < columns * 4) prefetch(z + at);
}

template <class T>
__device__ __forceinline__ void chunk_scan(const Chunked& k, const View& dst, const View& d, const View& gate) {
    let_next_start();
    const Work<T> work(k);
    wait_for_inputs();
    if (work.chunks == 0) return;
    const int warp = threadIdx.x / WARP;
    const Shared<T, 2> sh;
    sh.copy(0, work.bc);
    Ahead<T> ahead;
    fetch<T>(ahead, work.source, work.piece.first, work.tokens(0), work.piece.chunk);
    Finish fin = {};
    fin.y = (char*)(row_of<float>(dst, work.head) + work.column);
    fin.y_stride = dst.nb[2];
    fin.skip = d.data != nullptr;
    if (fin.skip) fin.d = ((const float*)d.data)[work.head];
    if (gate.data) {
        fin.z = (const char*)(row_of<const float>(gate, work.head) + work.column);
        fin.z_stride = gate.nb[2];
        fin.pairs = (((long long)fin.z | fin.z_stride) & 7) == 0;
        expect_z<T>(fin, work.piece.first, work.tokens(0), work.source.columns);
    }
    State<T> h;
    work.load_first(k, h);
    sh.most[warp] = most_of_state<T>(h);
    stage<T>(ahead, sh);
    __syncthreads();  // `most` is whole
    float h_undo = publish<T>(h, sh);
    // Later rows see more tokens, and warp w of every block runs on the same quarter of a
    // multiprocessor: half of the blocks deal the rows out the other way.
    const int row = 16 * (blockIdx.x < gridDim.x / 2 ? warp : CHUNK_WARPS - 1 - warp);
    for (int i = 0; i < work.chunks; i++) {
        copies_wait<0>();
        __syncthreads();  // B, C, x and h are here
        const bool more = i + 1 < work.chunks;
        if (more) {
            if (T::STAGES == 2) sh.copy(i + 1, work.bc + (i + 1) * work.bc_stride);
            fetch<T>(ahead, work.source, work.first(i + 1), work.tokens(i + 1), work.piece.chunk + i + 1);
            expect_z<T>(fin, work.first(i + 1), work.tokens(i + 1), work.source.columns);
        }
        if (row < work.tokens(i)) {
            outputs<T>(sh, sh.b_of(i), h_undo, row, work.first(i), work.tokens(i), work.source.columns, fin);
        }
        add_chunk<T>(h, sh, sh.b_of(i), weigh_tokens(sh));
        if (more) sh.most[warp] = most_of_state<T>(h);
        __syncthreads();  // they may be overwritten
        if (more) {
            if (T::STAGES == 1) sh.copy(i + 1, work.bc + (i + 1) * work.bc_stride);
            stage<T>(ahead, sh);
            h_undo = publish<T>(h, sh);
        }
    }
    if (work.piece.number == work.piece.count - 1) work.store_slot(k, h);
}

// Two blocks a multiprocessor, by registers.
#define SSM_CHUNK(KIND, N, P)                                                                                         \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 2) ssm_chunk_local_##KIND(CHUNKED_PARAMS) {           \
        chunk_local<Tile<N, P>>(CHUNKED_STRUCT);                                                                      \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 2)                                                    \
        ssm_chunk_scan_##KIND(CHUNKED_PARAMS, View dst, View d, View z) {                                             \
        chunk_scan<Tile<N, P>>(CHUNKED_STRUCT, dst, d, z);                                                            \
    }

SSM_CHUNK(64, 64, 64)
SSM_CHUNK(128, 128, 64)
SSM_CHUNK(128x80, 128, 80)
SSM_CHUNK(256, 256, 32)

// ssm_chunk_prepare, ssm_chunk_local_<kind>, and in ssm_chunk_scan.cu ssm_chunk_scan_<kind>:
// SSM_SCAN with one decay a head for many tokens, as matrix products over chunks of 64
// tokens (SSD, arXiv 2405.21060, section 6). src/graph/recurrent.rs has the operands; all
// are f32, rows contiguous, other strides and addresses any multiple of 4 bytes (the state
// lies on 16); d_state and head_dim are multiples of 16.
//
//   <kind>    N = d_state rounded up, P = columns of a head that a block takes
//             64: 64, 64    128: 128, 64    128x80: 128, 80    256: 256, 32
//   prepare   a warp for each chunk and token row of a group (B and C) or head (dt)
//             grid = ceil(chunks * (64 n_group + n_head) / 8), block 256
//   local     the state at the end of each piece (some chunks), as if it began with zeros;
//             not of a sequence's last piece. grid = pieces * n_head * ceil(head_dim / P),
//             block 128
//   scan      results, and states at the end of sequences; same grid
//   (over few tokens, ssm_chunk_short.cu instead of these two)
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
// Precision. Operands are f16 with f32 sums and states in f32: every rounding costs 2^-11
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
#include "ssm_chunk_work.cuh"

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
    let_next_start();
    const int n_group = b.ne[1], n_head = dt.ne[0], jobs = CHUNK * n_group + n_head;
    const long long number = (long long)blockIdx.x * PREPARE_WARPS + threadIdx.x / WARP;
    const int job = number % jobs;
    const Piece p = find_piece(rows, ids.ne[0], dim(b, 2), 1, number / jobs);
    wait_for_inputs();
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

// Two blocks a multiprocessor, by registers.
#define SSM_CHUNK_LOCAL(KIND, N, P)                                                                         \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 2) ssm_chunk_local_##KIND(CHUNKED_PARAMS) { \
        chunk_local<Tile<N, P>>(CHUNKED_STRUCT);                                                            \
    }

SSM_CHUNK_LOCAL(64, 64, 64)
SSM_CHUNK_LOCAL(128, 128, 64)
SSM_CHUNK_LOCAL(128x80, 128, 80)
SSM_CHUNK_LOCAL(256, 256, 32)

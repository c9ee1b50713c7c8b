// SSM_SCAN with one decay a head (Mamba-2, arXiv 2405.21060), token by token.
//
//   y [head_dim, n_head, n] contiguous   state [d_state, head_dim, n_head, slots],
//   contiguous, written in place   x [head_dim, n_head, n]   dt [n_head, n]
//   a [1, n_head]   b, c [d_state, n_group, n]   ids, rows as in ssm.cuh
//   dt_bias [n_head], d [n_head], z [head_dim, n_head, n]   or null
//
// All f32, f32 accumulators; rows contiguous, other strides free. A warp holds
// neighbouring rows of the state in registers, laid over its lanes by StateRow, ROWS
// of them a lane. b, c, x and z of `chunk` tokens (2, or a multiple of GROUP, at most 32)
// pass through shared memory: two buffers, one filled while the other is used, each
//   b, c [pitch, chunk]   x, z [block_rows, chunk]   floats
// with pitch = d_state rounded up to 4 and block_rows the rows of all warps of a block.
// grid = (ceil(head_dim / block_rows), n_head, n_seqs); blocks of 1 to 4 warps.
#include "ssm_scan.cuh"

// Where a block works.
struct HeadRowsAt {
    int h, group, first_row, n_rows;
    int block_rows, chunk;
};

// Starts copying tokens `t .. t + n` of the batch; gives dt of token `lane`.
template <typename Row>
__device__ __forceinline__ float stage_heads(const Scan& p, const HeadRowsAt& at, float* to, int t, int n) {
    const int d_state = Row::d_state(p.state);
    auto states = [&](const View& v) {
        stage_states<Row>(to, v.data + t * v.nb[2] + at.group * v.nb[1], v.nb[2], n, d_state);
        to += at.chunk * Row::pitch(d_state);
    };
    auto rows = [&](const View& v) {
        const char* from = v.data + t * v.nb[2] + at.h * v.nb[1] + at.first_row * 4ll;
        stage_singles(to, at.block_rows, from, v.nb[2], n, at.n_rows);
        to += at.chunk * at.block_rows;
    };
    const int lane = threadIdx.x % WARP;
    const float dt = lane < n ? row_of<const float>(p.dt, t + lane)[at.h] : 0.f;
    states(p.b);
    states(p.c);
    rows(p.x);
    if (p.z.data) rows(p.z);
    copies_commit();
    return dt;
}

// Writes the rows of a lane to a block's rows of the state in the cache.
template <typename Row, int ROWS>
__device__ __forceinline__ void store_rows(float* states, const float (&state)[ROWS][Row::N], int row, int n_rows,
                                           int d_state) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int at_row = row + r * Row::PER_WARP;
        if (at_row < n_rows) Row::store(states + (long long)at_row * d_state, state[r], threadIdx.x % Row::LANES, d_state);
    }
}

// One token on the rows of a lane: `add` is x * dt of each, `sums` this lane's part of y.
template <typename Row, int ROWS>
__device__ __forceinline__ void scan_token(float (&state)[ROWS][Row::N], float (&sums)[ROWS][GROUP], int u,
                                           const float* b, const float* c, const float (&add)[ROWS], float decay,
                                           int d_state) {
    const int lane = threadIdx.x % Row::LANES;
    float b_u[Row::N], c_u[Row::N];
    Row::load(b_u, b, lane, d_state);
    Row::load(c_u, c, lane, d_state);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < Row::N; i++) {
            if (!Row::used(i, d_state)) continue;
            state[r][i] = fmaf(state[r][i], decay, add[r] * b_u[i]);
            sums[r][u] = fmaf(state[r][i], c_u[i], sums[r][u]);
        }
    }
}

// Up to GROUP tokens in shared memory, where pointers are at the first of them; FULL:
// exactly so many. `y[r]` becomes the sum of the token that this lane writes.
template <typename Row, int ROWS, bool FULL>
__device__ __forceinline__ void scan_group(float (&state)[ROWS][Row::N], float (&y)[ROWS], const float* b,
                                           const float* c, const float* x, int block_rows, int d_state, float decay,
                                           float dt, int first, int n) {
    float sums[ROWS][GROUP] = {};
#pragma unroll
    for (int u = 0; u < GROUP; u++) {
        if (FULL || u < n) {
            const float decay_u = __shfl_sync(ALL_LANES, decay, first + u);
            const float dt_u = __shfl_sync(ALL_LANES, dt, first + u);
            float add[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) add[r] = x[u * block_rows + r * Row::PER_WARP] * dt_u;
            const int pitch = Row::pitch(d_state);
            scan_token<Row, ROWS>(state, sums, u, b + u * pitch, c + u * pitch, add, decay_u, d_state);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) y[r] = sums_of_tokens<Row::LANES>(sums[r], threadIdx.x % Row::LANES);
}

// Where a step of one token reads and writes, worked out before the wait: a first look at
// what a launch is given is a trip to memory as well.
struct Token {
    const float *x, *z, *dt, *b, *c;
    float* y;
    int skips;

    __device__ __forceinline__ Token(const Scan& p, const HeadRowsAt& at, int t)
        : x(row_of<const float>(p.x, at.h, t) + at.first_row),
          z(p.z.data ? row_of<const float>(p.z, at.h, t) + at.first_row : nullptr),
          dt(row_of<const float>(p.dt, t) + at.h),
          b(row_of<const float>(p.b, at.group, t)),
          c(row_of<const float>(p.c, at.group, t)),
          y(row_of<float>(p.y, at.h, t) + at.first_row),
          skips(p.d.data != nullptr) {
        // Used here, so not left for later.
        asm volatile("" ::"l"(x), "l"(z), "l"(dt), "l"(b), "l"(c), "l"(y), "r"(skips));
    }
};

// A step of one token, past shared memory: everything is under way at once.
template <typename Row, int ROWS>
__device__ __forceinline__ void scan_one(const Token& token, float (&state)[ROWS][Row::N], float* states, int row,
                                         int n_rows, int d_state, float a, float bias, float d) {
    const int lane = threadIdx.x % Row::LANES;
    const float dt_raw = *token.dt;
    float x[ROWS], z[ROWS], add[ROWS], sums[ROWS][GROUP] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        // Rows that are not there repeat the last one.
        const int i = min(row + r * Row::PER_WARP, n_rows - 1);
        x[r] = token.x[i];
        z[r] = token.z ? token.z[i] : 0.f;
    }
    const float dt = Softplus()(dt_raw + bias), decay = expf(dt * a);
#pragma unroll
    for (int r = 0; r < ROWS; r++) add[r] = x[r] * dt;
    scan_token<Row, ROWS>(state, sums, 0, token.b, token.c, add, decay, d_state);
    store_rows<Row, ROWS>(states, state, row, n_rows, d_state);
    // The first lanes have the sums of the first token, the only one: a row for each.
    static_assert(ROWS <= Row::LANES / GROUP, "a lane for each row");
    float y_own = 0.f, x_own = 0.f, z_own = 0.f;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float y = sums_of_tokens<Row::LANES>(sums[r], lane);
        if (lane == r) y_own = y, x_own = x[r], z_own = z[r];
    }
    const int at_row = row + lane * Row::PER_WARP;
    if (lane < ROWS && at_row < n_rows) token.y[at_row] = finished(y_own, token.skips, d, x_own, token.z, z_own);
}

// All tokens of a sequence, through shared memory.
template <typename Row, int ROWS>
__device__ __forceinline__ void scan_all(const Scan& p, const HeadRowsAt& at, const Sequence& seq,
                                         float (&state)[ROWS][Row::N], int row, float a, float bias, float d) {
    constexpr int EACH = Row::LANES / GROUP;  // lanes of a token's sum
    const int d_state = Row::d_state(p.state), pitch = Row::pitch(d_state);
    const int chunk = at.chunk, block_rows = at.block_rows, sub = threadIdx.x % Row::LANES;
    const int buffer_floats = 2 * chunk * (pitch + block_rows);
    float* shared = scan_shared();
    float dt_next = 0.f;
    // The first round only copies.
    for (int t = -chunk, odd = 1; t < seq.n; t += chunk, odd ^= 1) {
        const int n = min(chunk, seq.n - t), next = t + chunk;
        float dt = 0.f, decay = 0.f;
        if (t >= 0) {
            dt = Softplus()(dt_next + bias);
            decay = expf(dt * a);
        }
        copies_wait<0>();
        __syncthreads();  // this buffer is there, and nobody uses the other one any more
        if (next < seq.n)
            dt_next = stage_heads<Row>(p, at, shared + (odd ^ 1) * buffer_floats, seq.first + next,
                                       min(chunk, seq.n - next));
        if (t < 0) continue;
        const float* b = shared + odd * buffer_floats;
        const float* c = b + chunk * pitch;
        const float* x = c + chunk * pitch;
        const float* z = x + chunk * block_rows;
        for (int g = 0; g < n; g += GROUP) {
            float y[ROWS];
            const float *b_g = b + g * pitch, *c_g = c + g * pitch, *x_g = x + g * block_rows + row;
            if (Row::SMALL && n - g >= GROUP)
                scan_group<Row, ROWS, true>(state, y, b_g, c_g, x_g, block_rows, d_state, decay, dt, g, GROUP);
            else
                scan_group<Row, ROWS, false>(state, y, b_g, c_g, x_g, block_rows, d_state, decay, dt, g, n - g);
            const int u = g + sub / EACH;
            if (sub % EACH != 0 || u >= n) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int at_row = row + r * Row::PER_WARP, in_chunk = u * block_rows + at_row;
                if (at_row < at.n_rows)
                    row_of<float>(p.y, at.h, seq.first + t + u)[at.first_row + at_row] =
                        finished(y[r], p.d.data, d, x[in_chunk], p.z.data, p.z.data ? z[in_chunk] : 0.f);
            }
        }
    }
}

// Asks for what a step of one token reads: one trip to memory instead of two after the
// wait, where it is not in the cache already. One warp of a head asks for its rows and one
// of a group for b and c: a line that every warp asks for makes them all queue.
__device__ __forceinline__ void prefetch_token(const Scan& p, const HeadRowsAt& at, int t, int d_state) {
    if (blockIdx.x > 0 || threadIdx.x >= WARP) return;
    auto row = [](const float* from, int n) { prefetch_values(from, n, threadIdx.x, WARP); };
    const int head_dim = p.state.ne[1], n_head = p.state.ne[2];
    row(row_of<const float>(p.x, at.h, t), head_dim);
    if (p.z.data) row(row_of<const float>(p.z, at.h, t), head_dim);
    if (at.h % (n_head / p.b.ne[1]) > 0) return;
    row(row_of<const float>(p.b, at.group, t), d_state);
    row(row_of<const float>(p.c, at.group, t), d_state);
    if (at.h == 0) row(row_of<const float>(p.dt, t), n_head);
}

template <typename Row, int ROWS>
__device__ __forceinline__ void scan_heads(const Scan& p, int chunk) {
    constexpr int WARP_ROWS = Row::PER_WARP * ROWS;
    let_next_start();
    const int d_state = Row::d_state(p.state);
    const int head_dim = p.state.ne[1], n_head = p.state.ne[2];
    const int block_rows = blockDim.x / WARP * WARP_ROWS;
    HeadRowsAt at;
    at.h = blockIdx.y;
    at.group = at.h / (n_head / p.b.ne[1]);
    at.first_row = blockIdx.x * block_rows;
    at.n_rows = min(block_rows, head_dim - at.first_row);
    at.block_rows = block_rows;
    at.chunk = chunk;
    const Sequence seq = sequence(p.ids, p.rows, blockIdx.z, dim(p.x, 2), p.state.ne[3]);
    const int lane = threadIdx.x % WARP, sub = lane % Row::LANES, warp_row = threadIdx.x / WARP * WARP_ROWS;
    const int row = warp_row + lane / Row::LANES;
    float* states = row_of<float>(p.state, at.first_row, at.h, seq.n > 0 ? seq.slot : 0);
    const bool resumes = seq.n > 0 && !seq.fresh;
    if (resumes) {
        const int n_bytes = min(WARP_ROWS, at.n_rows - warp_row) * d_state * 4;
        const char* from = (const char*)(states + (long long)warp_row * d_state);
#pragma unroll 1
        for (int i = lane * 128; i < n_bytes; i += WARP * 128) prefetch(from + i);
    }
    if (seq.n == 1) prefetch_token(p, at, seq.first, d_state);
    const float a = Scan::value(p.a, at.h), bias = Scan::value(p.dt_bias, at.h), d = Scan::value(p.d, at.h);
    const Token token(p, at, seq.first);
    wait_for_inputs();
    if (seq.n == 0) return;

    float state[ROWS][Row::N];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int at_row = row + r * Row::PER_WARP;
        const bool there = resumes && at_row < at.n_rows;
#pragma unroll
        for (int i = 0; i < Row::N; i++) state[r][i] = 0.f;
        if (there) Row::load(state[r], states + (long long)at_row * d_state, sub, d_state);
    }
    if (seq.n == 1 && (!Row::EXACT || (in_fours(token.b, 0) && in_fours(token.c, 0)))) {
        scan_one<Row, ROWS>(token, state, states, row, at.n_rows, d_state, a, bias, d);
    } else {
        scan_all<Row, ROWS>(p, at, seq, state, row, a, bias, d);
        store_rows<Row, ROWS>(states, state, row, at.n_rows, d_state);
    }
}

// `blocks` at least on an SM: what a warp may have in registers.
#define SCAN_HEADS(name, lanes, values, vec, n_rows, blocks)                                                  \
    extern "C" __global__ void __launch_bounds__(128, blocks)                                                   \
        ssm_scan_heads_##name(View y, View state, View x, View dt, View a, View b, View c, View ids, View rows, \
                              View dt_bias, View d, View z, int chunk) {                                        \
        const Scan scan = {y, state, x, dt, a, b, c, ids, rows, dt_bias, d, z};                                 \
        scan_heads<StateRow<lanes, values, vec>, n_rows>(scan, chunk);                                        \
    }

SCAN_HEADS(16, 4, 4, 4, 1, 4)
SCAN_HEADS(64, 8, 8, 4, 2, 4)
SCAN_HEADS(128, 8, 16, 4, 2, 4)
SCAN_HEADS(256, 16, 16, 4, 2, 4)
SCAN_HEADS(upto_128, 32, 4, 1, 2, 4)
SCAN_HEADS(upto_1024, 32, 32, 1, 1, 3)

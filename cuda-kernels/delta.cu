// GATED_DELTA_NET (arXiv 2412.06464): of each V head, token by token,
//   S = S * exp(g);  S += k * delta, delta = beta * (v - S k);  o = S q / sqrt(d_k)
//
//   delta_64, delta_128, delta_256   d_k as named
//   delta_any                        any d_k up to 1024
//
//   dst    [d_v, n_v_head, n] f32
//   state  [d_k, d_v, n_v_head, slots] f32, contiguous, changed in place
//   q, k   [d_k, n_k_head, n] f32    v [d_v, n_v_head, n]    g, beta [n_v_head, n]
//   ids    [s] i32, state slot of each sequence, -1 - slot when it starts from zeros
//   rows   [s + 1] i32, its tokens are rows[i] .. rows[i + 1]
//   tiled  K head of V head h is h % n_k_head, else h / (n_v_head / n_k_head)
//
// Rows contiguous, other strides free. grid = (slices * n_v_head, s), a slice being the
// ROWS of `Split` of d_v; blocks of 256 threads. f32 accumulators.
//
// A few lanes hold a row of S in registers for the whole sequence. Tokens come through
// shared memory, a chunk being computed while the next one is on its way. A token costs
// one round of shuffles: both products are with the old state, since
//   S' q = exp(g) S q + delta (k q).
#include "ssm.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP;
constexpr int STAGED = 2048;  // values of q, and of k, of a chunk

// L lanes share a row, each with J fours of its values: four number j * L + part. WHOLE:
// d_k = 4 L J, else d_k is at most that.
template <int L, int J, bool WHOLE>
struct Split {
    static constexpr int GROUPS = WARP / L;       // rows of a warp
    static constexpr int ROWS = WARPS * GROUPS;   // rows of a block
    static constexpr int TOKENS = WHOLE ? STAGED / (4 * L * J) : STAGED / (4 * L);  // most of a chunk
};

// What a token's step takes besides vectors.
struct __align__(16) Factors {
    float decay, beta, kq, unused;
};

template <typename S>
struct Chunk {
    float4 q[STAGED / 4], k[STAGED / 4];  // rows of d_k up to a multiple of 4 L, then zeros
    float v[S::TOKENS * S::ROWS];
    float g[S::TOKENS], beta[S::TOKENS];
    Factors factors[S::TOKENS];
};

// An operand at the sequence's first token.
struct Stream {
    const char* at;
    long long step;  // bytes from token to token
    __device__ __forceinline__ const char* token(int t) const { return at + t * step; }
};

// What a block reads of a sequence.
struct Work {
    Stream q, k, v, g, beta;
    int d_k, n_rows;  // values of q and k, rows of the slice
    int fours;        // of a row of q or k in shared memory
    bool aligned;     // every q and k lies on 16 bytes
};

// Starts the copies of tokens first .. first + n. Rows of v that are not there are left
// as they are: nothing that comes from them is kept.
template <typename S>
__device__ __forceinline__ void stage(Chunk<S>& to, const Work& w, int first, int n) {
    stage_rows((float*)to.q, 4 * w.fours, w.q.token(first), w.q.step, n, w.d_k, w.aligned);
    stage_rows((float*)to.k, 4 * w.fours, w.k.token(first), w.k.step, n, w.d_k, w.aligned);
    stage_rows(to.v, S::ROWS, w.v.token(first), w.v.step, n, w.n_rows, false);
    stage_rows(to.g, 1, w.g.token(first), w.g.step, n, 1, false);
    stage_rows(to.beta, 1, w.beta.token(first), w.beta.step, n, 1, false);
    copies_commit();
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// One warp a token: exp(g), beta and k q.
template <typename S>
__device__ __forceinline__ void prepare(Chunk<S>& c, int fours, int n) {
    const int lane = threadIdx.x % WARP;
    for (int t = threadIdx.x / WARP; t < n; t += WARPS) {
        float kq = 0.f;
        for (int i = lane; i < fours; i += WARP) kq = dot(c.k[t * fours + i], c.q[t * fours + i], kq);
        kq = warp_sum(kq);
        if (lane == 0) c.factors[t] = {expf(c.g[t]), c.beta[t], kq, 0.f};
    }
}

// The row of the state from fours in memory, or back.
template <int L, int J, bool WHOLE>
__device__ __forceinline__ void load_state(float4 (&s)[J], const float* row, int part, int d_k) {
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int i = 4 * (j * L + part);
        if (WHOLE) {
            s[j] = *(const float4*)(row + i);
        } else {
            s[j] = {i < d_k ? row[i] : 0.f, i + 1 < d_k ? row[i + 1] : 0.f, i + 2 < d_k ? row[i + 2] : 0.f,
                    i + 3 < d_k ? row[i + 3] : 0.f};
        }
    }
}

template <int L, int J, bool WHOLE>
__device__ __forceinline__ void store_state(const float4 (&s)[J], float* row, int part, int d_k) {
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int i = 4 * (j * L + part);
        if (WHOLE) {
            *(float4*)(row + i) = s[j];
        } else {
            if (i < d_k) row[i] = s[j].x;
            if (i + 1 < d_k) row[i + 1] = s[j].y;
            if (i + 2 < d_k) row[i + 2] = s[j].z;
            if (i + 3 < d_k) row[i + 3] = s[j].w;
        }
    }
}

// Fours of a row in shared memory. Lanes l and l ^ 1 read the same one where several
// rows share a warp, which halves the accesses.
template <int L, int J, bool WHOLE>
__device__ __forceinline__ void fragment(float4 (&x)[J], const float4* row, int part, int fours) {
#pragma unroll
    for (int j = 0; j < J; j++)
        x[j] = WHOLE || j * L < fours ? row[j * L + part] : float4{0.f, 0.f, 0.f, 0.f};
}

// `n` tokens of a chunk; `out` is the row's place of the first of them.
template <int L, int J, bool WHOLE>
__device__ __forceinline__ void walk(float4 (&s)[J], const Chunk<Split<L, J, WHOLE>>& c, int n, int fours,
                                     float scale, float* out, long long out_step) {
    using S = Split<L, J, WHOLE>;
    const int lane = threadIdx.x % WARP, part = lane / S::GROUPS;
    const int r = threadIdx.x / WARP * S::GROUPS + lane % S::GROUPS;
    float4 k[J], q[J];
    fragment<L, J, WHOLE>(k, c.k, part, fours);
    fragment<L, J, WHOLE>(q, c.q, part, fours);
    for (int t = 0; t < n; t++) {
        const Factors f = c.factors[t];
        const float v = c.v[t * S::ROWS + r];
        // Two sums each: shorter chains.
        float known[2] = {0.f, 0.f}, seen[2] = {0.f, 0.f};
#pragma unroll
        for (int j = 0; j < J; j++) {
            known[j % 2] = dot(s[j], k[j], known[j % 2]);
            seen[j % 2] = dot(s[j], q[j], seen[j % 2]);
        }
        float sk = known[0] + known[1], sq = seen[0] + seen[1];
        // The next token's vectors while the sums are exchanged.
        const int next = min(t + 1, n - 1) * fours;
        fragment<L, J, WHOLE>(q, c.q + next, part, fours);
        float4 next_k[J];
        fragment<L, J, WHOLE>(next_k, c.k + next, part, fours);
#pragma unroll
        for (int o = WARP / 2; o >= S::GROUPS; o /= 2) {
            sk += __shfl_xor_sync(ALL_LANES, sk, o);
            sq += __shfl_xor_sync(ALL_LANES, sq, o);
        }
        const float delta = f.beta * (v - f.decay * sk);
#pragma unroll
        for (int j = 0; j < J; j++) {
            s[j].x = fmaf(s[j].x, f.decay, k[j].x * delta);
            s[j].y = fmaf(s[j].y, f.decay, k[j].y * delta);
            s[j].z = fmaf(s[j].z, f.decay, k[j].z * delta);
            s[j].w = fmaf(s[j].w, f.decay, k[j].w * delta);
            k[j] = next_k[j];
        }
        if (part == 0 && out) out[t * out_step] = scale * fmaf(f.decay, sq, f.kq * delta);
    }
}

template <int L, int J, bool WHOLE>
__device__ __forceinline__ void delta_net(const View& dst, const View& state, const View& q, const View& k,
                                          const View& v, const View& g, const View& beta, const View& ids,
                                          const View& rows, int tiled) {
    using S = Split<L, J, WHOLE>;
    __shared__ Chunk<S> chunks[2];
    let_next_start();
    const int n_head = state.ne[2], h = blockIdx.x % n_head, row = blockIdx.x / n_head * S::ROWS;
    const int d_k = WHOLE ? 4 * L * J : state.ne[0], n_rows = min(S::ROWS, state.ne[1] - row);
    const Sequence seq = sequence(ids, rows, blockIdx.y, dim(dst, 2), state.ne[3]);
    float* slice = row_of<float>(state, row, h, seq.n > 0 ? seq.slot : 0);
    if (seq.n > 0 && !seq.fresh) {
        constexpr int LINE = 32;  // values of a cache line
        for (int i = LINE * threadIdx.x; i < n_rows * d_k; i += LINE * THREADS) prefetch(slice + i);
    }
    wait_for_inputs();
    if (seq.n == 0) return;

    const int fours = WHOLE ? L * J : (d_k + 4 * L - 1) / (4 * L) * L;
    const int most = WHOLE ? S::TOKENS : STAGED / (4 * fours);  // tokens of a chunk
    const int k_head = tiled ? h % k.ne[1] : h / (n_head / k.ne[1]);
    Work w;
    w.q = {row_of<const char>(q, k_head, seq.first), q.nb[2]};
    w.k = {row_of<const char>(k, k_head, seq.first), k.nb[2]};
    w.v = {(const char*)(row_of<const float>(v, h, seq.first) + row), v.nb[2]};
    w.g = {(const char*)(row_of<const float>(g, seq.first) + h), g.nb[1]};
    w.beta = {(const char*)(row_of<const float>(beta, seq.first) + h), beta.nb[1]};
    w.d_k = d_k;
    w.n_rows = n_rows;
    w.fours = fours;
    w.aligned = d_k % 4 == 0 && in_fours(w.q.at, q.nb[2]) && in_fours(w.k.at, k.nb[2]);
    if (!WHOLE) {
        // What lies behind the d_k values of a row stays zero.
        for (int i = threadIdx.x; i < STAGED; i += THREADS)
            for (Chunk<S>& c : chunks) ((float*)c.q)[i] = ((float*)c.k)[i] = 0.f;
        __syncthreads();
    }
    stage(chunks[0], w, 0, min(most, seq.n));

    const int lane = threadIdx.x % WARP, part = lane / S::GROUPS;
    const int r = threadIdx.x / WARP * S::GROUPS + lane % S::GROUPS;
    const bool mine = r < n_rows;  // other lanes go along, and keep nothing
    float4 s[J] = {};
    if (mine && !seq.fresh) load_state<L, J, WHOLE>(s, slice + r * d_k, part, d_k);
    float* out = mine ? row_of<float>(dst, h, seq.first) + row + r : nullptr;
    const long long out_step = dst.nb[2] / 4;
    const float scale = 1.f / sqrtf((float)d_k);
    for (int first = 0, at = 0; first < seq.n; first += most, at ^= 1) {
        copies_wait<0>();
        // This chunk is there for all, and the other buffer is no longer read.
        __syncthreads();
        const int next = first + most, n = min(most, seq.n - first);
        if (next < seq.n) stage(chunks[at ^ 1], w, next, min(most, seq.n - next));
        prepare(chunks[at], fours, n);
        __syncthreads();
        walk<L, J, WHOLE>(s, chunks[at], n, fours, scale, out, out_step);
        if (out) out += n * out_step;
    }
    if (mine) store_state<L, J, WHOLE>(s, slice + r * d_k, part, d_k);
}

#define DELTA(name, lanes, fours, whole)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                    \
        delta_##name(View dst, View state, View q, View k, View v, View g, View beta, View ids, View rows,   \
                     int tiled) {                                                                            \
        delta_net<lanes, fours, whole>(dst, state, q, k, v, g, beta, ids, rows, tiled);                      \
    }

DELTA(64, 8, 2, true)
DELTA(128, 8, 4, true)
DELTA(256, 16, 4, true)
DELTA(any, 32, 8, false)

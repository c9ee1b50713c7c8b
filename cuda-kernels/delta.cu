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
#include "common.cuh"

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
    float4 q[STAGED / 4], k[STAGED / 4];  // [d_k up to a multiple of 4 L, tokens]
    float v[S::TOKENS * S::ROWS];
    float g[S::TOKENS], beta[S::TOKENS];
    Factors factors[S::TOKENS];
};

// An operand at the sequence's first token; `step` values from token to token.
struct Stream {
    const float* at;
    long long step;
    __device__ __forceinline__ const float* token(int t) const { return at + t * step; }
};

__device__ __forceinline__ Stream stream(const View& x, int token_dim, int head, int first, int column) {
    const char* at = x.data + first * x.nb[token_dim] + (token_dim == 2 ? head * x.nb[1] : 0);
    return {(const float*)at + column, x.nb[token_dim] / 4};
}

// What a block reads of a sequence.
struct Work {
    Stream q, k, v, g, beta;
    int d_k, n_rows;  // values of q and k, rows of the slice
    int fours;        // of a row of q or k in shared memory
    bool aligned;     // every q and k lies on 16 bytes
};

// Asynchronous copies of 16 and of 4 bytes; those beyond `bytes` become zero.
__device__ __forceinline__ void copy16(float4* to, const float* from, int bytes) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy4(float* to, const float* from, int bytes) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Starts the copies of tokens first .. first + n.
template <typename S>
__device__ __forceinline__ void stage(Chunk<S>& to, const Work& w, int first, int n) {
    for (int i = threadIdx.x; i < 2 * n * w.fours; i += THREADS) {
        const int t = i / (2 * w.fours), c = i % w.fours;
        const bool of_k = i / w.fours % 2;
        const float* row = (of_k ? w.k : w.q).token(first + t);
        float4* at = (of_k ? to.k : to.q) + t * w.fours + c;
        const int left = w.d_k - 4 * c;  // values of the row from here on
        if (w.aligned) {
            copy16(at, left > 0 ? row + 4 * c : row, 4 * max(0, min(left, 4)));
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) copy4((float*)at + j, left > j ? row + 4 * c + j : row, left > j ? 4 : 0);
        }
    }
    for (int i = threadIdx.x; i < n * S::ROWS; i += THREADS) {
        const int r = i % S::ROWS;
        const float* row = w.v.token(first + i / S::ROWS);
        copy4(to.v + i, r < w.n_rows ? row + r : row, r < w.n_rows ? 4 : 0);
    }
    for (int t = threadIdx.x; t < n; t += THREADS) {
        copy4(to.g + t, w.g.token(first + t), 4);
        copy4(to.beta + t, w.beta.token(first + t), 4);
    }
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
    const int seq = blockIdx.y, h = blockIdx.x % state.ne[2], slice = blockIdx.x / state.ne[2];
    const int id = row_of<const int>(ids, 0)[seq], slot = id < 0 ? ~id : id;
    const int n_live = dim(dst, 2);
    const int begin = max(0, min(row_of<const int>(rows, 0)[seq], n_live));
    const int end = min(row_of<const int>(rows, 0)[seq + 1], n_live);
    if (begin >= end || slot >= state.ne[3]) return;

    const int d_k = WHOLE ? 4 * L * J : state.ne[0], d_v = state.ne[1], row = slice * S::ROWS;
    const int fours = WHOLE ? L * J : (d_k + 4 * L - 1) / (4 * L) * L;
    const int most = WHOLE ? S::TOKENS : STAGED / (4 * fours);  // tokens of a chunk
    const int k_head = tiled ? h % k.ne[1] : h / (state.ne[2] / k.ne[1]);
    Work w;
    w.q = stream(q, 2, k_head, begin, 0);
    w.k = stream(k, 2, k_head, begin, 0);
    w.v = stream(v, 2, h, begin, row);
    w.g = stream(g, 1, 0, begin, h);
    w.beta = stream(beta, 1, 0, begin, h);
    w.d_k = d_k;
    w.n_rows = min(S::ROWS, d_v - row);
    w.fours = fours;
    w.aligned = (((uintptr_t)w.q.at | (uintptr_t)w.k.at | q.nb[2] | k.nb[2]) & 15) == 0;
    const int n_tokens = end - begin;

    stage(chunks[0], w, 0, min(most, n_tokens));
    const int lane = threadIdx.x % WARP, part = lane / S::GROUPS;
    const int r = threadIdx.x / WARP * S::GROUPS + lane % S::GROUPS;
    const bool mine = r < w.n_rows;  // other lanes go along with zeros
    float* kept = row_of<float>(state, row + r, h, slot);
    float4 s[J] = {};
    if (mine && id >= 0) load_state<L, J, WHOLE>(s, kept, part, d_k);
    float* out = mine ? row_of<float>(dst, h, begin) + row + r : nullptr;
    const long long out_step = dst.nb[2] / 4;
    const float scale = 1.f / sqrtf((float)d_k);
    for (int first = 0, at = 0; first < n_tokens; first += most, at ^= 1) {
        copies_wait();
        // This chunk is there for all, and the other buffer is no longer read.
        __syncthreads();
        const int next = first + most, n = min(most, n_tokens - first);
        if (next < n_tokens) stage(chunks[at ^ 1], w, next, min(most, n_tokens - next));
        prepare(chunks[at], fours, n);
        __syncthreads();
        walk<L, J, WHOLE>(s, chunks[at], n, fours, scale, out, out_step);
        if (out) out += n * out_step;
    }
    if (mine) store_state<L, J, WHOLE>(s, kept, part, d_k);
}

#define DELTA(name, lanes, fours, whole)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                    \
        delta_##name(View dst, View state, View q, View k, View v, View g, View beta, View ids, View rows,   \
                     int tiled) {                                                                            \
        start();                                                                                             \
        delta_net<lanes, fours, whole>(dst, state, q, k, v, g, beta, ids, rows, tiled);                      \
    }

DELTA(64, 8, 2, true)
DELTA(128, 8, 4, true)
DELTA(256, 16, 4, true)
DELTA(any, 32, 8, false)

// Which piece of a sequence, head and columns a block of ssm_chunk.cu or
// ssm_chunk_scan.cu works on, and the states it begins and ends with.
#pragma once
#include "ssm_chunk.cuh"

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

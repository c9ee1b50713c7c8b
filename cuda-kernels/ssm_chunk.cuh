// What the kernels of ssm_chunk.cu share: where a block works, powers of two that bring
// operands into f16's range, staged x, and the products over one chunk.
//
// N is the width of the state (d_state, padded with zeros), P the columns of a head that
// a block takes (those beyond head_dim are zeros). Lane l of a warp is g = l / 4,
// c = l % 4.
#pragma once
#include "attn_mma.cuh"
#include "ssm.cuh"

constexpr int CHUNK = 64;  // tokens
constexpr int CHUNK_WARPS = 4, CHUNK_THREADS = CHUNK_WARPS * WARP;

// 1 / x to 1 ulp; 0 above 2^126.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int N_, int P_, int STAGES_ = N_ <= 128 ? 2 : 1>
struct Tile {
    static constexpr int N = N_, P = P_;
    static constexpr int SLICE = N / CHUNK_WARPS;       // columns of the state that a warp keeps
    static constexpr int MT = P / 16, NT = SLICE / 8;   // the same in tensor core tiles
    static constexpr int STAGES = STAGES_;              // of B and C in shared memory
    static constexpr int X_PITCH = P + 8, H_PITCH = N + 8;  // halves; eight rows in different banks
    static constexpr int MATRIX = CHUNK * N;            // halves of a chunk's B or C
};

// A block's share of the state: rows p = 16 mt + g and + 8, columns n = SLICE * warp +
// 8 nt + 2c and + 1.
template <class T>
using State = float[T::MT][T::NT][4];

// A power of two and its inverse.
struct Lift {
    float factor, undo;
};

// What brings `most` >= 0 to 2^top .. 2^(top + 1); values below 2^-100 count as that.
__device__ __forceinline__ Lift lift(float most, int top) {
    const int e = min(max((int)(__float_as_uint(most) >> 23) - 127, -100), 126);
    return {__uint_as_float((unsigned)(top - e + 127) << 23), __uint_as_float((unsigned)(e - top + 127) << 23)};
}

// Exponents of the largest value of a row. x is multiplied with M, B by w: both products
// stay below 2^15, and every value down to 2^-21 of the largest keeps all its bits.
constexpr int TOP_X = 14, TOP_C = 14, TOP_M = 14, TOP_H = 14, TOP_B = 6, TOP_W = 7;

__device__ __forceinline__ float most_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

__device__ __forceinline__ uint2 lifted(float4 v, float factor) {
    return make_uint2(pack_half2(v.x * factor, v.y * factor), pack_half2(v.z * factor, v.w * factor));
}

__device__ __forceinline__ float4 load_four(const float* at, bool fours) {
    return fours ? *(const float4*)at : make_float4(at[0], at[1], at[2], at[3]);
}

// Maximum over the four lanes of a row.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// Place of 8 halves of B or C: rows of N halves, pieces of 16 bytes swapped so that eight
// rows of a matrix load lie in different banks.
template <int N>
__device__ __forceinline__ int swizzled(int row, int piece) {
    return row * N + (piece & ~7) * 8 + ((piece ^ row) & 7) * 8;
}

// All sequences cut into pieces of whole chunks, each from its own first token.
struct Piece {
    int sequence;       // -1: there are not so many pieces
    int number, count;  // of this piece in its sequence; pieces of that
    int first, end;     // tokens
    int chunk;          // number of its first chunk among all chunks
    int kept;           // number of its sequence's first piece, among sequences of several pieces
};

// Piece number `index` of pieces of `piece_chunks` chunks. All lanes of a warp call it.
__device__ __forceinline__ Piece find_piece(const View& rows, int n_seqs, int n_tokens, int piece_chunks, int index) {
    const int lane = threadIdx.x % WARP;
    int chunks_before = 0, kept_before = 0;
    for (int from = 0; from < n_seqs; from += WARP) {
        const int i = from + lane;
        const int2 tokens = i < n_seqs ? tokens_of(rows, i, n_tokens) : make_int2(0, 0);
        const int chunks = (tokens.y + CHUNK - 1) / CHUNK, pieces = (chunks + piece_chunks - 1) / piece_chunks;
        const int kept = pieces > 1 ? pieces : 0;
        int chunks_end = chunks, pieces_end = pieces, kept_end = kept;  // with those of lanes before
#pragma unroll
        for (int o = 1; o < WARP; o *= 2) {
            const int a = __shfl_up_sync(ALL_LANES, chunks_end, o), b = __shfl_up_sync(ALL_LANES, pieces_end, o);
            const int d = __shfl_up_sync(ALL_LANES, kept_end, o);
            if (lane >= o) chunks_end += a, pieces_end += b, kept_end += d;
        }
        const unsigned beyond = __ballot_sync(ALL_LANES, pieces_end > index);
        if (beyond) {
            const int owner = __ffs(beyond) - 1;
            Piece p;
            p.sequence = from + owner;
            p.number = index - __shfl_sync(ALL_LANES, pieces_end - pieces, owner);
            p.count = __shfl_sync(ALL_LANES, pieces, owner);
            p.first = __shfl_sync(ALL_LANES, tokens.x, owner) + p.number * piece_chunks * CHUNK;
            const int end = __shfl_sync(ALL_LANES, tokens.x + tokens.y, owner);
            p.end = min(p.first + piece_chunks * CHUNK, end);
            p.chunk = chunks_before + __shfl_sync(ALL_LANES, chunks_end - chunks, owner) + p.number * piece_chunks;
            p.kept = kept_before + __shfl_sync(ALL_LANES, kept_end - kept, owner);
            return p;
        }
        index -= __shfl_sync(ALL_LANES, pieces_end, WARP - 1);
        chunks_before += __shfl_sync(ALL_LANES, chunks_end, WARP - 1);
        kept_before += __shfl_sync(ALL_LANES, kept_end, WARP - 1);
    }
    return {-1, 0, 0, 0, 0, 0, 0};
}

// Shared memory of a block; `ops/ssm_chunk.rs` counts the same bytes. MATRICES is 2 for
// B and C, 1 for one of them; `local` and `states` have no `h`.
template <class T, int MATRICES>
struct Shared {
    half *bc, *x, *w, *h;
    float *log_decay, *weight, *x_undo, *c_undo, *most;

    __device__ __forceinline__ Shared() {
        bc = (half*)dynamic_shared();                 // [STAGES][MATRICES][CHUNK][N], swizzled
        x = bc + T::STAGES * MATRICES * T::MATRIX;    // [CHUNK][X_PITCH]
        w = x + CHUNK * T::X_PITCH;                   // [CHUNK_WARPS][CHUNK]
        log_decay = (float*)(w + CHUNK_WARPS * CHUNK);  // [CHUNK] each: log2 of the decay since the chunk began,
        weight = log_decay + CHUNK;                   // dt * undo of B and x,
        x_undo = weight + CHUNK;
        c_undo = x_undo + CHUNK;
        most = c_undo + CHUNK;                        // [CHUNK_WARPS]
        h = (half*)(most + CHUNK_WARPS);              // [P][H_PITCH]
    }

    __device__ __forceinline__ half* b_of(int chunk) const {
        return bc + chunk % T::STAGES * MATRICES * T::MATRIX;
    }

    // Starts the copy of a chunk's B (and C).
    __device__ __forceinline__ void copy(int chunk, const half* from) const {
        constexpr int PIECES = MATRICES * T::MATRIX / 8;
        static_assert(PIECES % CHUNK_THREADS == 0, "every thread copies the same number of pieces");
        half* to = b_of(chunk) + threadIdx.x * 8;
        from += threadIdx.x * 8;
#pragma unroll
        for (int i = 0; i < PIECES / CHUNK_THREADS; i++) {
            copy_async(to + i * CHUNK_THREADS * 8, from + i * CHUNK_THREADS * 8, true);
        }
        copies_commit();
    }
};

// Where x and the numbers of tokens are read.
struct Source {
    const char* x;  // first column of the block in token 0
    long long x_stride;
    int columns;    // of the block that the head has
    bool fours;
    // Lanes c = 0 .. 3 read log decay, dt, undo of B, undo of C.
    const float* token;
    size_t token_stride;  // from chunk to chunk
};

// x of a chunk on its way to shared memory: rows 16 warp + g and + 8, columns 16 i + 4c.
template <class T>
struct Ahead {
    float4 x[2][T::MT];
    float token[2];
};

template <class T, bool FOURS>
__device__ __forceinline__ void fetch_rows(Ahead<T>& a, const Source& s, int first, int n) {
    const int r = 16 * (threadIdx.x / WARP) + threadIdx.x % WARP / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float* row = (const float*)(s.x + (first + r + 8 * half) * s.x_stride) + threadIdx.x % 4 * 4;
#pragma unroll
        for (int i = 0; i < T::MT; i++) {
            const bool there = r + 8 * half < n && 16 * i < s.columns;
            a.x[half][i] = there ? load_four(row + 16 * i, FOURS) : make_float4(0.f, 0.f, 0.f, 0.f);
        }
    }
}

// Starts reading the `n` tokens from `first` on, which are chunk `chunk` of all.
template <class T>
__device__ __forceinline__ void fetch(Ahead<T>& a, const Source& s, int first, int n, int chunk) {
    const float* token = s.token + chunk * s.token_stride + 16 * (threadIdx.x / WARP) + threadIdx.x % WARP / 4;
    a.token[0] = token[0], a.token[1] = token[8];
    if (s.fours) {
        fetch_rows<T, true>(a, s, first, n);
    } else {
        fetch_rows<T, false>(a, s, first, n);
    }
}

template <class T, class S>
__device__ __forceinline__ void stage(const Ahead<T>& a, const S& sh) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = 16 * warp + 8 * half + lane / 4;
        float most = 0.f;
#pragma unroll
        for (int i = 0; i < T::MT; i++) most = fmaxf(most, most_of(a.x[half][i]));
        const Lift up = lift(quad_max(most), TOP_X);
        uint2* row = (uint2*)(sh.x + r * T::X_PITCH) + c;
#pragma unroll
        for (int i = 0; i < T::MT; i++) row[4 * i] = lifted(a.x[half][i], up.factor);
        const float dt = __shfl_sync(ALL_LANES, a.token[half], lane / 4 * 4 + 1);
        const float b_undo = __shfl_sync(ALL_LANES, a.token[half], lane / 4 * 4 + 2);
        if (c == 0) {
            sh.log_decay[r] = a.token[half];
            sh.weight[r] = dt * b_undo * up.undo;
            sh.x_undo[r] = up.undo;
        }
        if (c == 3) sh.c_undo[r] = a.token[half];
    }
}

// What a chunk does to the state: how much of it stays, and the unit of what it adds.
struct Step {
    float keep, undo;
};

// The weights of this warp's copy of B: dt and the decay up to the chunk's end.
template <class S>
__device__ __forceinline__ Step weigh_tokens(const S& sh) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float end = sh.log_decay[CHUNK - 1];
    const float2 at = ((const float2*)sh.log_decay)[lane], f = ((const float2*)sh.weight)[lane];
    const float w0 = f.x * exp2_fast(end - at.x), w1 = f.y * exp2_fast(end - at.y);
    const Lift up = lift(warp_max(fmaxf(w0, w1)), TOP_W);
    ((uint32_t*)(sh.w + warp * CHUNK))[lane] = pack_half2(w0 * up.factor, w1 * up.factor);
    __syncwarp();
    return {exp2_fast(end), up.undo};
}

__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
    half2 x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    x = __hmul2(x, y);
    memcpy(&a, &x, 4);
    return a;
}

// Calls `f(m, sums)` with the sums over tokens of x[p] * w * B[n], 16 rows p at a time.
template <class T, class S, class F>
__device__ __forceinline__ void each_sum(const S& sh, const half* b, F f) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int low = lane / 8 % 2, high = lane / 16;
    const uint32_t* w = (const uint32_t*)(sh.w + warp * CHUNK) + lane % 4;
    uint32_t weighed[CHUNK / 16][T::NT][2];
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        const uint32_t w0 = w[8 * k], w1 = w[8 * k + 4];
#pragma unroll
        for (int j = 0; j < T::NT / 2; j++) {
            // Matrices: tokens 0 .. 7 and 8 .. 15 of 8 columns, then of the next 8.
            uint32_t r[4];
            const int row = 16 * k + 8 * low + lane % 8;
            load_matrices_transposed(r, b + swizzled<T::N>(row, warp * T::SLICE / 8 + 2 * j + high));
            weighed[k][2 * j][0] = times(r[0], w0), weighed[k][2 * j][1] = times(r[1], w1);
            weighed[k][2 * j + 1][0] = times(r[2], w0), weighed[k][2 * j + 1][1] = times(r[3], w1);
        }
    }
    // Matrices: tokens 0 .. 7 of columns 0 .. 7 and 8 .. 15 of x, then the next tokens.
    const half* x = sh.x + (8 * high + lane % 8) * T::X_PITCH + 8 * low;
#pragma unroll
    for (int m = 0; m < T::MT; m++) {
        float sum[T::NT][4] = {};
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t a[4];
            load_matrices_transposed(a, x + 16 * k * T::X_PITCH + 16 * m);
#pragma unroll
            for (int j = 0; j < T::NT; j++) {
                mma(sum[j], make_uint4(a[0], a[1], a[2], a[3]), weighed[k][j][0], weighed[k][j][1]);
            }
        }
        f(m, sum);
    }
}

// h = h * keep + the sums of a chunk.
template <class T, class S>
__device__ __forceinline__ void add_chunk(State<T>& h, const S& sh, const half* b, Step step) {
    each_sum<T>(sh, b, [&](int m, const float(&sum)[T::NT][4]) {
#pragma unroll
        for (int j = 0; j < T::NT; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) h[m][j][i] = fmaf(sum[j][i], step.undo, h[m][j][i] * step.keep);
        }
    });
}

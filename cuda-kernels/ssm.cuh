// What ops over sequences share (src/graph/recurrent.rs has their contract): finding
// a sequence, and copying rows into shared memory.
//
//   ids   i32 [n_seqs]       state slot of each sequence, -1 - slot of a fresh one
//   rows  i32 [n_seqs + 1]   tokens rows[i] .. rows[i + 1] belong to sequence i
//
// Both are inputs of the graph, which go up before its first kernel: they may be read
// before `wait_for_inputs`.
#pragma once
#include "async_copy.cuh"
#include "math.cuh"

// x * sigmoid(x) without branches: 1 / y by one step of Newton is the nearest float as long
// as that is no subnormal, so e^-x stops short of that; -inf stays -inf.
struct SiluShort {
    __device__ __forceinline__ float operator()(float x) const {
        const float y = 1.f + expf(-x > 87.f ? 87.f : -x);  // NaN stays NaN
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
        return x * fmaf(r, fmaf(-y, r, 1.f), r);
    }
};

// A sequence of the batch.
struct Sequence {
    int first;   // its first token
    int n;       // its tokens; 0: there is nothing to do, the state is left alone
    int slot;    // of its state
    bool fresh;  // the state starts from zeros
};

// Tokens of sequence `i`, of `n_tokens` that are alive.
__device__ __forceinline__ int2 tokens_of(const View& rows, int i, int n_tokens) {
    const int* at = (const int*)rows.data + i;
    const int first = min(max(at[0], 0), n_tokens);
    return make_int2(first, max(min(at[1], n_tokens) - first, 0));
}

// Sequence `i`; slots that the cache does not have are passed over.
__device__ __forceinline__ Sequence sequence(const View& ids, const View& rows, int i, int n_tokens, int n_slots) {
    const int id = ((const int*)ids.data)[i];
    const int2 tokens = tokens_of(rows, i, n_tokens);
    Sequence seq;
    seq.fresh = id < 0;
    seq.slot = id < 0 ? ~id : id;
    seq.first = tokens.x;
    seq.n = seq.slot < n_slots ? tokens.y : 0;
    return seq;
}

// Number `tile` of the pieces of at most `tile_tokens` tokens that all sequences are
// cut into, each from its own first token.
struct SequenceTile {
    int sequence;  // -1: there are not so many pieces
    int piece;     // within its sequence
};

// A grid has at most n_tokens / tile_tokens + n_seqs pieces. All lanes of a warp call it.
__device__ __forceinline__ SequenceTile sequence_tile(const View& rows, int n_seqs, int n_tokens, int tile_tokens,
                                                      int tile) {
    const int lane = threadIdx.x % WARP;
    for (int first = 0; first < n_seqs; first += WARP) {
        const int i = first + lane;
        const int n = i < n_seqs ? tokens_of(rows, i, n_tokens).y : 0;
        const int pieces = (n + tile_tokens - 1) / tile_tokens;
        int end = pieces;  // of this sequence and those before it
#pragma unroll
        for (int o = 1; o < WARP; o *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, end, o);
            if (lane >= o) end += other;
        }
        const unsigned beyond = __ballot_sync(ALL_LANES, end > tile);
        if (beyond) {
            const int owner = __ffs(beyond) - 1;
            return {first + owner, tile - __shfl_sync(ALL_LANES, end - pieces, owner)};
        }
        tile -= __shfl_sync(ALL_LANES, end, WARP - 1);
    }
    return {-1, 0};
}

// True when rows of whole fours that start at `at`, `stride_bytes` apart, can be read
// 16 bytes at a time.
__device__ __forceinline__ bool in_fours(const void* at, long long stride_bytes) {
    return (((long long)at | stride_bytes) & 15) == 0;
}

// Starts copying `n` rows of `width` values, `stride_bytes` apart, to rows of `pitch`
// values; `fours` as `in_fours` has it, with width and pitch in whole fours. All
// threads of the block call it. Not unrolled: a step of one token runs through cold code.
__device__ __forceinline__ void stage_rows(float* to, int pitch, const char* from, long long stride_bytes, int n,
                                           int width, bool fours) {
    if (fours) {
        const int units = width / 4;
#pragma unroll 1
        for (int i = threadIdx.x; i < n * units; i += blockDim.x) {
            const int row = i / units, at = 4 * (i % units);
            stage_16(to + row * pitch + at, (const float*)(from + row * stride_bytes) + at);
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < n * width; i += blockDim.x) {
            const int row = i / width, at = i % width;
            stage_4(to + row * pitch + at, (const float*)(from + row * stride_bytes) + at);
        }
    }
}

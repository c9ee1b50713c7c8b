// SSM_CONV: convolution over time of each channel, with bias and SiLU.
//
//   y[ch, t] = act(bias[ch] + sum_j w[j, ch] * in[ch, t - (d_conv - 1) + j]),
//   in = the rows of the state (oldest first), then x of the sequence; the last
//   d_conv - 1 inputs become the state
//
//   y [c, n] contiguous   x [c, n]   w [d_conv, c]   state [c, d_conv - 1, slots],
//   written in place   ids, rows as in ssm.cuh   bias [c] or null   silu: 0 or 1
//
// All f32, f32 accumulator; rows contiguous, other strides free. Each sequence is cut
// into pieces of TILE tokens; a block takes 4 blockDim.x channels of one piece, each
// channel by one thread, so that the first piece alone reads and writes the state:
// d_conv <= TILE + 1. grid = (n / TILE + n_seqs) * ceil(c / (4 blockDim.x)), rounded up.
#include "ssm.cuh"

constexpr int TILE = 16;
// Tokens whose loads are under way together.
constexpr int AHEAD = 8;

struct Conv {
    View y, x, w, state, bias;
    int silu;
};

// The piece of a sequence that a block works on.
struct Piece {
    Sequence seq;
    int begin, end;  // tokens, from the first of the sequence
};

template <int V>
__device__ __forceinline__ void load(float (&v)[V], const float* from) {
    if constexpr (V == 4) {
        const float4 four = *(const float4*)from;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        v[0] = *from;
    }
}

template <int V>
__device__ __forceinline__ void store(float* to, const float (&v)[V]) {
    if constexpr (V == 4) *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
    else *to = v[0];
}

__device__ __forceinline__ const float* token_of(const Conv& p, const Sequence& seq, int t, int ch) {
    return row_of<const float>(p.x, seq.first + t) + ch;
}

__device__ __forceinline__ float* state_row(const Conv& p, const Sequence& seq, int j, int ch) {
    return row_of<float>(p.state, j, seq.slot) + ch;
}

// Input number `t` of the sequence, -(d_conv - 1) being the oldest of the state.
template <int V>
__device__ __forceinline__ void load_input(float (&v)[V], const Conv& p, const Sequence& seq, int t, int ch) {
    if (t >= 0) {
        load(v, token_of(p, seq, t, ch));
    } else if (seq.fresh) {
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = 0.f;
    } else {
        load(v, state_row(p, seq, p.state.ne[1] + t, ch));
    }
}

// Keeps the last inputs of `D - 1` rows, V channels.
template <int D, int V>
__device__ __forceinline__ void keep_last(const Conv& p, const Sequence& seq, int ch) {
    float kept[D - 1][V];
#pragma unroll
    for (int j = 0; j < D - 1; j++) load_input(kept[j], p, seq, seq.n - (D - 1) + j, ch);
#pragma unroll
    for (int j = 0; j < D - 1; j++) store(state_row(p, seq, j, ch), kept[j]);
}

// V neighbouring channels, D taps; inputs wait in registers.
template <int D, int V>
__device__ __forceinline__ void conv_fixed(const Conv& p, const Piece& piece, int ch) {
    const Sequence& seq = piece.seq;
    float w[V][D], bias[V] = {}, in[D - 1 + AHEAD][V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float* taps = row_of<const float>(p.w, ch + i);
        if constexpr (V == 4 && D == 4) {
            load(w[i], taps);
        } else {
#pragma unroll
            for (int j = 0; j < D; j++) w[i][j] = taps[j];
        }
    }
    if (p.bias.data) load(bias, (const float*)p.bias.data + ch);
    wait_for_inputs();
    if (piece.begin >= piece.end) return;
#pragma unroll
    for (int j = 0; j < D - 1; j++) load_input(in[j], p, seq, piece.begin - (D - 1) + j, ch);
    for (int t = piece.begin; t < piece.end; t += AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (t + u < piece.end) load(in[D - 1 + u], token_of(p, seq, t + u, ch));
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (t + u >= piece.end) break;
            float sum[V];
#pragma unroll
            for (int i = 0; i < V; i++) {
                sum[i] = bias[i];
#pragma unroll
                for (int j = 0; j < D; j++) sum[i] = fmaf(w[i][j], in[u + j][i], sum[i]);
                if (p.silu) sum[i] = SiluShort()(sum[i]);
            }
            store(row_of<float>(p.y, seq.first + t + u) + ch, sum);
        }
#pragma unroll
        for (int j = 0; j < D - 1; j++) {
#pragma unroll
            for (int i = 0; i < V; i++) in[j][i] = in[AHEAD + j][i];
        }
    }
    if (piece.begin == 0) keep_last<D, V>(p, seq, ch);
}

__device__ __forceinline__ void conv_any(const Conv& p, const Piece& piece, int ch) {
    const int d_conv = p.w.ne[0];
    const float* w = row_of<const float>(p.w, ch);
    const float bias = p.bias.data ? ((const float*)p.bias.data)[ch] : 0.f;
    const int kept = d_conv - 1;
    for (int t = piece.begin; t < piece.end; t++) {
        float sum = bias, in[1];
        for (int j = 0; j < d_conv; j++) {
            load_input(in, p, piece.seq, t - kept + j, ch);
            sum = fmaf(w[j], in[0], sum);
        }
        row_of<float>(p.y, piece.seq.first + t)[ch] = p.silu ? SiluShort()(sum) : sum;
    }
    if (piece.begin > 0) return;
    // A short sequence moves rows up: row j comes from a later one, which is still old.
    for (int j = 0; j < kept; j++) {
        float in[1];
        load_input(in, p, piece.seq, piece.seq.n - kept + j, ch);
        store(state_row(p, piece.seq, j, ch), in);
    }
}

// Which tokens this block works on: none when `begin == end`.
__device__ __forceinline__ Piece piece_of(const Conv& p, const View& ids, const View& rows, int tile) {
    const int n_seqs = ids.ne[0], n_tokens = dim(p.x, 1);
    const SequenceTile at = sequence_tile(rows, n_seqs, n_tokens, TILE, tile);
    Piece piece = {};
    if (at.sequence < 0) return piece;
    piece.seq = sequence(ids, rows, at.sequence, n_tokens, p.state.ne[2]);
    piece.begin = min(at.piece * TILE, piece.seq.n);
    piece.end = min(piece.begin + TILE, piece.seq.n);
    return piece;
}

// Whether fours of neighbouring channels, and fours of taps, can be read at once.
__device__ __forceinline__ bool channels_in_fours(const Conv& p) {
    return p.x.ne[0] % 4 == 0 && in_fours(p.x.data, p.x.nb[1]) && in_fours(p.y.data, p.y.nb[1]) &&
           in_fours(p.state.data, p.state.nb[1]) && in_fours(p.w.data, p.w.nb[1]) && in_fours(p.bias.data, 0);
}

// D: taps, 0 for any number of them.
template <int D>
__device__ __forceinline__ void ssm_conv(const Conv& p, const View& ids, const View& rows) {
    let_next_start();
    const int n_channels = p.x.ne[0], per_block = 4 * blockDim.x;
    const int n_blocks = (n_channels + per_block - 1) / per_block;
    const Piece piece = piece_of(p, ids, rows, blockIdx.x / n_blocks);
    const int first = blockIdx.x % n_blocks * per_block;
    if constexpr (D > 0) {
        if (channels_in_fours(p)) {
            const int ch = first + 4 * threadIdx.x;
            if (ch < n_channels) conv_fixed<D, 4>(p, piece, ch);
            else wait_for_inputs();
            return;
        }
    }
    wait_for_inputs();
    if (piece.begin >= piece.end) return;
    for (int i = 0; i < 4; i++) {
        const int ch = first + i * blockDim.x + threadIdx.x;
        if (ch >= n_channels) break;
        if constexpr (D > 0) conv_fixed<D, 1>(p, piece, ch);
        else conv_any(p, piece, ch);
    }
}

extern "C" __global__ void ssm_conv_4(View y, View x, View w, View state, View ids, View rows, View bias, int silu) {
    ssm_conv<4>({y, x, w, state, bias, silu}, ids, rows);
}

extern "C" __global__ void ssm_conv_any(View y, View x, View w, View state, View ids, View rows, View bias,
                                        int silu) {
    ssm_conv<0>({y, x, w, state, bias, silu}, ids, rows);
}

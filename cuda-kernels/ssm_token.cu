// One token of Mamba (arXiv 2312.00752) between its products in and out, in two launches
// with the bits of the four that they stand for (`src/backend/cuda/ssm_token.rs` says where):
//
//   ssm_token_x            u = silu(conv(x)), then dt, B, C = W u   W  Q4_K or Q6_K [k, m]
//   ssm_token_scan_<type>  u again, dt = W_dt dt, then the scan; leaves both states
//
// as ssm_conv.cu, mul_mat_vec_int.cu, mul_mat_vec.cu and ssm_scan_channels.cu have them, with
// 4 taps, a state of 16 and groups of 256 channels. Both find u, since only the second, which
// runs when nobody reads it any more, may write the convolution's state.
//
// Such launches take as long as a warp takes from its first to its last instruction: nothing
// loops, a warp has as little as it can, and all but what the launches in front write is read
// before they are done. The states are: no other launch of a step touches them.
#include "int_product.cuh"
#include "quant/q5_0.cuh"
#include "quant/q8_0.cuh"
#include "ring.cuh"
#include "ssm.cuh"
#include "ssm_scan.cuh"

constexpr int TAPS = 4, D_STATE = 16;
constexpr int TOKEN_GROUPS = 20;  // of 256 channels, at most; a warp each
constexpr int MOST_UNITS = 5;     // of 32 values of dt

// What both have to find u. All f32.
struct TokenConv {
    const int *ids, *rows, *live;  // as ssm.cuh has them, of one sequence; live null: 1
    const float *x, *w, *bias;     // [c], [TAPS, c], [c] or null
    float* state;                  // [c, TAPS - 1, n_slots]
    int c, n_slots;
};

struct TokenX {
    TokenConv conv;
    const uint8_t* w;
    float* y;  // [m]
    int m, q6;
};

struct TokenScan {
    TokenConv conv;
    const uint8_t* dt_w;              // [32 n_units, c]
    const float *dt, *b, *c;          // [32 n_units], [D_STATE] each
    const float *a, *dt_bias, *d, *z;  // [D_STATE, c], [c] or null, [c], [c]
    float *state, *y;                 // [D_STATE, c, n_slots], [c]
    int n_units, pad;
};
static_assert(sizeof(TokenX) == 11 * 8 && sizeof(TokenScan) == 19 * 8, "the host packs these");

__device__ __forceinline__ float4 fours(const float* from) { return *(const float4*)from; }

// Loads that stay where they are, ahead of what says whether they are needed.
__device__ __forceinline__ float4 fours_now(const float* from) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

__device__ __forceinline__ float single_now(const float* from) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from));
    return v;
}

// The token's sequence.
struct TokenSlot {
    bool there, fresh;
    int slot;  // one that the cache has, whatever `ids` says; the only one is known early

    __device__ __forceinline__ explicit TokenSlot(const TokenConv& p) : slot(0) {
        const int id = p.ids[0], first = p.rows[0], end = p.rows[1], live = p.live ? *p.live : 1;
        fresh = id < 0;
        const int wanted = fresh ? ~id : id;
        there = wanted < p.n_slots && live > 0 && first <= 0 && end > 0;
        if (p.n_slots > 1) slot = min(wanted, p.n_slots - 1);
    }

    // Row j of the convolution's state.
    __device__ __forceinline__ float* row(const TokenConv& p, int j) const {
        return p.state + ((size_t)slot * (TAPS - 1) + j) * p.c;
    }
};

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

// A row tile is a cluster's: its blocks share the groups of x, a warp each, and the first one
// adds up.
constexpr int PARTS = 4, TOKEN_X_THREADS = TOKEN_GROUPS / PARTS * WARP;

struct TokenXShared {
    XGroup<1> zeros, x[TOKEN_GROUPS / PARTS];
    float4 past[TOKEN_GROUPS / PARTS][2][WARP];  // the sums of all taps but the newest,
    float4 last[TOKEN_GROUPS / PARTS][2][WARP];  // that one
    float4 shares[TOKEN_GROUPS][2][WARP / 4];    // of rows r and r + 8; by lane % 4
    uint64_t all;                                // shares are there
};

// Puts `v` where the first block of the cluster has what this one has at `at`, and counts it there.
__device__ __forceinline__ void put_in_first(const float* at, float v, const uint64_t* counted) {
    asm volatile(
        "{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, 0;\nmapa.shared::cluster.u32 bar, %1, 0;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, [bar];\n}" ::"r"(shared_at(at)),
        "r"(shared_at(counted)), "r"(__float_as_uint(v))
        : "memory");
}

// Has `bytes` counted at `b`.
__device__ __forceinline__ void expect(uint64_t* b, uint32_t bytes) {
    barrier_init(b, 1);
    barriers_ready();
    barrier_expect(b, bytes);
}

__device__ __forceinline__ void counted_wait(uint64_t* b) {
    asm volatile(
        "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n@p bra DONE;\n"
        "bra WAIT;\nDONE:\n}" ::"r"(shared_at(b))
        : "memory");
}

template <class T>
__device__ __forceinline__ void token_x(const TokenX& p, TokenXShared& sh) {
    constexpr int ZEROS = sizeof(sh.zeros) / 16, LINE = 128;
    static_assert(T::GROUP < LINE * WARP, "a lane each");
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int part = blockIdx.x % PARTS, row_tile = blockIdx.x / PARTS;
    const int g = part * warps + warp, n_groups = PARTS * warps;
    let_next_start();
    if (threadIdx.x == 0) expect(&sh.all, n_groups * sizeof(sh.shares[0]));
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    for (int i = threadIdx.x; i < ZEROS; i += blockDim.x) ((uint4*)&sh.zeros)[i] = make_uint4(0, 0, 0, 0);
    const TokenSlot at(p.conv);
    const int ch = g * X_GROUP + 8 * lane;
    // For these there are no registers yet.
    const uint8_t* tile = p.w + (size_t)row_tile * n_groups * T::GROUP;
    prefetch(tile + (size_t)g * T::GROUP + min(lane * LINE, T::GROUP - 1));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int first = ch + 4 * half;
        const float4 bias = p.conv.bias ? fours(p.conv.bias + first) : make_float4(0.f, 0.f, 0.f, 0.f);
        float sum[4] = {bias.x, bias.y, bias.z, bias.w}, past[TAPS - 1][4];
        float4 taps[4];
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++) *(float4*)past[j] = fours_now(at.row(p.conv, j) + first);
#pragma unroll
        for (int i = 0; i < 4; i++) taps[i] = fours_now(p.conv.w + (size_t)(first + i) * TAPS);
        if (!at.fresh) {  // else zeros are in the past
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i] = fmaf(taps[i].z, past[2][i], fmaf(taps[i].y, past[1][i], fmaf(taps[i].x, past[0][i], sum[i])));
        }
        // Into shared memory, or the compiler puts this off until x is there.
        sh.past[warp][half][lane] = *(const float4*)sum;
        sh.last[warp][half][lane] = make_float4(taps[0].w, taps[1].w, taps[2].w, taps[3].w);
    }
    __syncthreads();
    // All blocks of the cluster have begun.
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    wait_for_inputs();
    if (!at.there) return;

    float x[8], v[8], last[8];
#pragma unroll
    for (int i = 0; i < 2; i++) *(float4*)(x + 4 * i) = __ldcg((const float4*)(p.conv.x + ch) + i);
    typename T::Step weights;
    load_group<T>(weights, tile, g, n_groups, lane);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        *(float4*)(v + 4 * i) = sh.past[warp][i][lane];
        *(float4*)(last + 4 * i) = sh.last[warp][i][lane];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = SiluShort()(fmaf(last[i], x[i], v[i]));
    stage_group(sh.x[warp], 0, v, lane);
    __syncwarp();
    OneSum share;
    add_group(share, weights, sh.x[warp], sh.zeros, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) put_in_first((float*)sh.shares[g][h] + lane, share.v[h], &sh.all);
    if (part > 0) return;
    counted_wait(&sh.all);
    // A class a thread: what its lanes had of its groups in order, then the lanes, then the
    // classes as `sum_of_classes` adds them.
    for (int i = threadIdx.x; i < TILE_ROWS * CLASSES; i += blockDim.x) {
        const int row = i / CLASSES, first = i % CLASSES;
        float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int j = 0; j < (TOKEN_GROUPS + CLASSES - 1) / CLASSES; j++) {
            if (first + j * CLASSES >= n_groups) break;
            const float4 part = sh.shares[first + j * CLASSES][row / 8][row % 8];
            s.x += part.x, s.y += part.y, s.z += part.z, s.w += part.w;
        }
        float y = (s.x + s.y) + (s.z + s.w);
#pragma unroll
        for (int o = CLASSES / 2; o > 0; o /= 2) y += __shfl_xor_sync(ALL_LANES, y, o);
        const int at_row = row_tile * TILE_ROWS + row;
        if (first == 0 && at_row < p.m) p.y[at_row] = y;
    }
}

// Grid: PARTS blocks a row tile, of a warp for each of their groups.
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(TOKEN_X_THREADS, 1)
    ssm_token_x(const __grid_constant__ TokenX p) {
    __shared__ TokenXShared sh;
    if (p.q6) token_x<Q6_K>(p, sh);
    else token_x<Q4_K>(p, sh);
}

#endif

// 16 channels a block: a row tile of W_dt, whose product each of its two warps finds for
// itself. A warp has 8 channels, lane (r, c) four values of the state of number r.
constexpr int SCAN_WARPS = 2, OF_WARP = TILE_ROWS / SCAN_WARPS;

struct TokenScanShared {
    uint4 weights[MOST_UNITS][2][WARP];  // of dt, as products want them
    uint4 x[SCAN_WARPS][8][4];
};

template <class T>
__device__ __forceinline__ void token_scan(const TokenScan& p, TokenScanShared& sh) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r = lane / 4, c = lane % 4;
    const int ch = blockIdx.x * TILE_ROWS + warp * OF_WARP + r;
    let_next_start();
    const TokenSlot at(p.conv);
    constexpr int STEPS = (MOST_UNITS + T::UNITS - 1) / T::UNITS;
    const uint8_t* tile = p.dt_w + blockIdx.x * row_tile_bytes<T>(p.n_units);
    typename T::Step st[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++) T::load(st[s], tile, s, p.n_units, lane);
    const float4 a = fours(p.a + (size_t)ch * D_STATE + 4 * c), taps = fours(p.conv.w + (size_t)ch * TAPS);
    const float dt_bias = p.dt_bias ? p.dt_bias[ch] : 0.f, d = p.d[ch];
    float u = p.conv.bias ? p.conv.bias[ch] : 0.f, past[TAPS - 1];
    float* kept = p.state + ((size_t)at.slot * p.conv.c + ch) * D_STATE + 4 * c;
    float4 state = fours_now(kept);
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) past[j] = single_now(at.row(p.conv, j) + ch);
    // Into shared memory, or the compiler puts this work off until x is there.
    each<MOST_UNITS>([&](auto unit) {
        constexpr int U = decltype(unit)::value;
        if (U % SCAN_WARPS != warp) return;
        uint32_t w[2][4];
        weights<T, U % T::UNITS>(st[U / T::UNITS], w);
#pragma unroll
        for (int i = 0; i < 2; i++) sh.weights[U][i][lane] = make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
    });
    if (at.fresh) {
        state = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++) past[j] = 0.f;
    }
    u = fmaf(taps.z, past[2], fmaf(taps.y, past[1], fmaf(taps.x, past[0], u)));
    __syncthreads();
    wait_for_inputs();
    if (!at.there) return;

    // Values 8 c .. of unit r of dt.
    float4 x[2] = {};
    if (r < p.n_units) {
#pragma unroll
        for (int i = 0; i < 2; i++) x[i] = __ldcg((const float4*)(p.dt + r * UNIT + 8 * c) + i);
    }
    const float newest = __ldcg(p.conv.x + ch), z = __ldcg(p.z + ch);
    const float4 b = __ldcg((const float4*)p.b + c), to_y = __ldcg((const float4*)p.c + c);
    sh.x[warp][r][c] =
        make_uint4(to_act2(x[0].x, x[0].y), to_act2(x[0].z, x[0].w), to_act2(x[1].x, x[1].y), to_act2(x[1].z, x[1].w));
    __syncwarp();
    // All eight columns are the token.
    float acc[2][4] = {};
    each<MOST_UNITS>([&](auto unit) {
        constexpr int U = decltype(unit)::value;
        if (U >= p.n_units) return;
        const uint4 v = sh.x[warp][U][c], w0 = sh.weights[U][0][lane], w1 = sh.weights[U][1][lane];
        mma(acc[0], (const uint32_t*)&w0, v.x, v.y);
        mma(acc[1], (const uint32_t*)&w1, v.z, v.w);
    });
    u = SiluShort()(fmaf(taps.w, newest, u));
    const float gate = SiluShort()(z);
    const float dt = (warp ? acc[0][2] + acc[1][2] : acc[0][0] + acc[1][0]) * ACT_UNSCALE;
    const float step = softplus_short(dt + dt_bias), input = u * step;
    state.x = fmaf(state.x, exp2_fast(step * (a.x * LOG2_E)), input * b.x);
    state.y = fmaf(state.y, exp2_fast(step * (a.y * LOG2_E)), input * b.y);
    state.z = fmaf(state.z, exp2_fast(step * (a.z * LOG2_E)), input * b.z);
    state.w = fmaf(state.w, exp2_fast(step * (a.w * LOG2_E)), input * b.w);
    // As `sums_of_tokens` adds eight lanes of two values: those four apart first.
    float even = fmaf(state.y, to_y.y, state.x * to_y.x), odd = fmaf(state.w, to_y.w, state.z * to_y.z);
    even += __shfl_xor_sync(ALL_LANES, even, 2), odd += __shfl_xor_sync(ALL_LANES, odd, 2);
    even += __shfl_xor_sync(ALL_LANES, even, 1), odd += __shfl_xor_sync(ALL_LANES, odd, 1);
    *(float4*)kept = state;
    // Lane c keeps the input that becomes row c.
    if (c < TAPS - 1) *(at.row(p.conv, c) + ch) = c == 0 ? past[1] : c == 1 ? past[2] : newest;
    else p.y[ch] = fmaf(d, u, even + odd) * gate;
}

// Grid: 16 channels each.
#define ENTRY(T)                                                        \
    extern "C" __global__ void __launch_bounds__(SCAN_WARPS* WARP, 20)  \
        ssm_token_scan_##T(const __grid_constant__ TokenScan p) {       \
        __shared__ TokenScanShared sh;                                  \
        token_scan<T>(p, sh);                                           \
    }
ENTRY(Q5_0)
ENTRY(Q8_0)

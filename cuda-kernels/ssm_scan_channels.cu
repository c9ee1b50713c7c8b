// SSM_SCAN with a decay for each channel and state (Mamba, arXiv 2312.00752), token by
// token; a head is one channel.
//
//   y [1, n_head, n] contiguous   state [d_state, 1, n_head, slots], contiguous,
//   written in place   x [1, n_head, n]   dt [n_head, n]   a [d_state, n_head],
//   contiguous   b, c [d_state, 1, n]   ids, rows as in ssm.cuh   dt_bias [n_head],
//   d [n_head], z [1, n_head, n]   or null
//
// All f32, f32 accumulators; channels of a token contiguous, other strides free. A
// block holds the states of CHANNELS channels in registers, laid over lanes by
// StateRow. `chunk` tokens (a multiple of GROUP) pass through shared memory, floats:
//   two buffers, one filled while the other is used, each
//     b, c [pitch, chunk]   x, dt, z [CHANNELS, chunk]     pitch = d_state, up to 4
//   then steps (dt, x * dt) [2, CHANNELS, chunk], y [CHANNELS, chunk]
// so that softplus and gates are computed once a channel and token.
// grid = (ceil(n_head / CHANNELS), n_seqs); blocks of CHANNELS * LANES threads.
#include "ssm_scan.cuh"

// Where a block works.
struct ChannelsAt {
    int first, n;  // channels
    int chunk;
};

// Starts copying tokens `t .. t + n` of the batch.
template <typename Row, int CHANNELS>
__device__ __forceinline__ void stage_channels(const Scan& p, const ChannelsAt& at, float* to, int t, int n) {
    const int d_state = Row::d_state(p.state);
    auto states = [&](const View& v) {
        stage_states<Row>(to, v.data + t * v.nb[2], v.nb[2], n, d_state);
        to += at.chunk * Row::pitch(d_state);
    };
    auto channels = [&](const View& v, long long stride) {
        const char* from = v.data + t * stride + at.first * 4ll;
        if (at.n == CHANNELS && in_fours(from, stride)) stage_fours<CHANNELS>(to, from, stride, n);
        else stage_singles(to, CHANNELS, from, stride, n, at.n);
        to += at.chunk * CHANNELS;
    };
    states(p.b);
    states(p.c);
    channels(p.x, p.x.nb[2]);
    channels(p.dt, p.dt.nb[1]);
    if (p.z.data) channels(p.z, p.z.nb[2]);
    copies_commit();
}

// Up to GROUP tokens of one channel; FULL: exactly so many. Pointers are at the first of
// them. Gives the sum of the token that this lane writes.
template <typename Row, int CHANNELS, bool FULL>
__device__ __forceinline__ float scan_group(float (&state)[Row::N], const float (&decay)[Row::N], const float* b,
                                            const float* c, const float2* steps, int pitch, int d_state, int n) {
    const int lane = threadIdx.x % Row::LANES;
    float sums[GROUP] = {};
#pragma unroll
    for (int u = 0; u < GROUP; u++) {
        if (FULL || u < n) {
            const float2 step = steps[u * CHANNELS];
            float b_u[Row::N], c_u[Row::N];
            Row::load(b_u, b + u * pitch, lane, d_state);
            Row::load(c_u, c + u * pitch, lane, d_state);
#pragma unroll
            for (int i = 0; i < Row::N; i++) {
                if (!Row::used(i, d_state)) continue;
                state[i] = fmaf(state[i], exp2_fast(step.x * decay[i]), step.y * b_u[i]);
                sums[u] = fmaf(state[i], c_u[i], sums[u]);
            }
        }
    }
    return sums_of_tokens<Row::LANES>(sums, lane);
}

template <typename Row, int CHANNELS>
__device__ __forceinline__ void scan_channels(const Scan& p, int chunk) {
    constexpr int EACH = Row::LANES / GROUP;  // lanes of a token's sum
    const int d_state = Row::d_state(p.state), pitch = Row::pitch(d_state), n_head = p.state.ne[2];
    const int buffer_floats = chunk * (2 * pitch + 3 * CHANNELS);
    ChannelsAt at;
    at.first = blockIdx.x * CHANNELS;
    at.n = min(CHANNELS, n_head - at.first);
    at.chunk = chunk;
    const Sequence seq = sequence(p.ids, p.rows, blockIdx.y, dim(p.x, 2), p.state.ne[3]);
    // The blocks of the next launch are given the places that are free when they may
    // start: after a long scan's own, whose end no SM should wait for longer than others.
    if (seq.n <= chunk) let_next_start();
    const int sub = threadIdx.x % Row::LANES, channel = threadIdx.x / Row::LANES;
    const bool there = channel < at.n;
    float* kept = row_of<float>(p.state, 0, at.first + channel, seq.n > 0 ? seq.slot : 0);
    const bool resumes = there && seq.n > 0 && !seq.fresh;
    if (resumes) {
#pragma unroll 1
        for (int i = sub * 32; i < d_state; i += Row::LANES * 32) prefetch(kept + i);
    }
    float decay[Row::N], state[Row::N];
#pragma unroll
    for (int i = 0; i < Row::N; i++) {
        const int index = Row::index(sub, i);
        const float a = there && index < d_state ? row_of<const float>(p.a, at.first + channel)[index] : 0.f;
        decay[i] = a * LOG2_E;
        state[i] = 0.f;
    }
    // Before and after the scan, threads share values of tokens instead; each stays
    // with one channel.
    const int own = threadIdx.x % CHANNELS, own_head = at.first + min(own, at.n - 1);
    const float bias = Scan::value(p.dt_bias, own_head), d = Scan::value(p.d, own_head);
    wait_for_inputs();
    if (seq.n == 0) return;

    if (resumes) Row::load(state, kept, sub, d_state);
    float* shared = scan_shared();
    float2* steps = (float2*)(shared + 2 * buffer_floats);
    float* sums = (float*)(steps + chunk * CHANNELS);
    // The first round only copies.
    for (int t = -chunk, odd = 1; t < seq.n; t += chunk, odd ^= 1) {
        const int n = min(chunk, seq.n - t), next = t + chunk;
        copies_wait<0>();
        __syncthreads();  // this buffer is there, and nobody uses the other one any more
        if (next < seq.n)
            stage_channels<Row, CHANNELS>(p, at, shared + (odd ^ 1) * buffer_floats, seq.first + next,
                                          min(chunk, seq.n - next));
        if (t < 0) continue;
        const float* b = shared + odd * buffer_floats;
        const float* c = b + chunk * pitch;
        const float* x = c + chunk * pitch;
        const float* dt = x + chunk * CHANNELS;
        const float* z = dt + chunk * CHANNELS;
#pragma unroll 4
        for (int i = threadIdx.x; i < n * CHANNELS; i += blockDim.x) {
            const float step = softplus_short(dt[i] + bias);
            steps[i] = make_float2(step, x[i] * step);
        }
        __syncthreads();
        // Several groups at a time: the shuffles of one wait beside the exponentials of another.
        constexpr int TOGETHER = Row::N <= 4 ? 2 : 1;
        float* sums_own = sums + sub / EACH * CHANNELS + channel;
        int g = 0;
        for (; g + TOGETHER * GROUP <= n; g += TOGETHER * GROUP) {
            float sum[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const int u = g + j * GROUP;
                sum[j] = scan_group<Row, CHANNELS, true>(state, decay, b + u * pitch, c + u * pitch,
                                                         steps + u * CHANNELS + channel, pitch, d_state, GROUP);
            }
            if (sub % EACH != 0) continue;
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) sums_own[(g + j * GROUP) * CHANNELS] = sum[j];
        }
        for (; g < n; g += GROUP) {
            const float sum = scan_group<Row, CHANNELS, false>(state, decay, b + g * pitch, c + g * pitch,
                                                               steps + g * CHANNELS + channel, pitch, d_state,
                                                               min(GROUP, n - g));
            if (sub % EACH == 0) sums_own[g * CHANNELS] = sum;
        }
        __syncthreads();
        if (own >= at.n) continue;
        float* y = row_of<float>(p.y, 0, seq.first + t + threadIdx.x / CHANNELS) + at.first + own;
        const long long step = blockDim.x / CHANNELS * (p.y.nb[2] / 4);
#pragma unroll 4
        for (int i = threadIdx.x; i < n * CHANNELS; i += blockDim.x, y += step)
            *y = finished(sums[i], p.d.data, d, x[i], p.z.data, p.z.data ? z[i] : 0.f);
    }
    if (there) Row::store(kept, state, sub, d_state);
}

// `blocks` at least on an SM: what a warp may have in registers, tokens in advance.
#define SCAN_CHANNELS(name, lanes, values, vec, channels, blocks)                                                \
    extern "C" __global__ void __launch_bounds__(channels * lanes, blocks)                                         \
        ssm_scan_channels_##name(View y, View state, View x, View dt, View a, View b, View c, View ids, View rows, \
                                 View dt_bias, View d, View z, int chunk) {                                        \
        const Scan scan = {y, state, x, dt, a, b, c, ids, rows, dt_bias, d, z};                                    \
        scan_channels<StateRow<lanes, values, vec>, channels>(scan, chunk);                                      \
    }

SCAN_CHANNELS(16, 8, 2, 2, 8, 12)
SCAN_CHANNELS(upto_128, 32, 4, 1, 4, 6)
SCAN_CHANNELS(upto_1024, 32, 32, 1, 4, 3)
